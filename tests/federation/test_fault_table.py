"""Every fault at every set of sites: a round ends with the result of the other sites, or with an error.

The sites compute a sum instead of training a network, so that the whole table takes a second.
"""

import pytest
from fault_table import FAULTS, SUBSETS, deviation


@pytest.mark.parametrize("stops", [False, True], ids=["drop", "stop"])
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("faulty", SUBSETS, ids="+".join)
def test_every_fault_at_every_set_of_sites(faulty, fault, stops):
    assert deviation(faulty, fault, stops) == ""
