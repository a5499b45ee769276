"""Every fault at every set of sites: a round ends with the result of the other sites, or with an error.

The sites compute a sum instead of training a network, so that the whole table takes a second.
"""

import pytest
from fault_table import DIES, FAULTS, LATE, NEVER_STARTS, SUBSETS, Sites, deviation, finish

from medfed.core.errors import UserError


@pytest.mark.parametrize("stops", [False, True], ids=["drop", "stop"])
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("faulty", SUBSETS, ids="+".join)
def test_every_fault_at_every_set_of_sites(faulty, fault, stops):
    assert deviation(faulty, fault, stops) == ""


@pytest.mark.parametrize("fault", [NEVER_STARTS, DIES, LATE])
def test_without_a_quorum_one_missing_site_ends_the_run(fault):
    with pytest.raises(UserError, match="^round 2: 3 of 4 sites .* federation.quorum needs all .south: its update"):
        finish(Sites(frozenset({"south"}), fault))
