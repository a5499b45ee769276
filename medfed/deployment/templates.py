"""Texts of the files that `prepare` writes: the hospitals' files, the README.md, and FLARE's project file."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

from medfed.config import strict_yaml

MIN_PATIENTS = 5  # that a hospital agrees to if it changes nothing: fewer patients than most rules for tables allow
Participant = dict[str, object]
ADMIN = "coordinator@medfed.org"  # FLARE requires the name of an admin console to look like an e-mail address

SITE_FILE = """# The file of hospital {site}: where its data are, and what may leave. Paths are relative to this file.
#   medfed site {site}.yaml --dry-run   # check the data and show what would leave; nothing is sent
#   medfed site {site}.yaml             # the same, then ask for confirmation and join the federation

site: {site:<18} # the name of this site in the federation
plan: plan.yaml          # the settings that are the same for all hospitals; read them before you join
kit: kit                 # the folder of this hospital's startup kit of NVIDIA FLARE, unpacked
folder: medfed_{site:<9} # ledger, log, final model, and files that are needed after a restart

data:                    # this hospital's own values for keys of the plan's `data` block
  root: data             # the folder that contains the folder {site}
{data}
cache:                   # restyled images of patients, which the methods ccst and fisc store at this hospital
  folder: ""             # "" is the temporary folder of the system (TMPDIR); null stores them in memory
  max_gb: 10.0           # images beyond this size are computed again

agrees:                  # what may leave this hospital; everything else is refused and not sent
  requests: [train, survey]  # survey: before round 1, describe the images by numbers over groups of at least
                         # min_patients patients (counts, sizes, voxel sizes, intensities), so that other units or
                         # classes are found before anybody trains. Without it, only the training is allowed
  sends: []              # names of statistics that may leave in addition to weights; the dry run lists the names
  rounds: {rounds:<14} # number of training rounds
  megabytes_per_round: 100  # largest size of a round in 10^6 bytes: weights, statistics and facts (such as the loss)
  replies_per_round: 3   # how many replies of one kind may leave in a round; one that is lost is requested again
  min_patients: {min_patients:<8} # each number of a statistic must be computed from at least this many patients;
                         # the dry run shows how many they are. 1 allows statistics of single images (elcfs)
  max_epsilon: null      # limit of the privacy loss (epsilon of differential privacy) by all weights and statistics
                         # that leave, such as 8; needs noise in the plan. null: no limit. Facts are never covered
  delta: 0.00001         # the delta of max_epsilon
"""

README = """# A federation of {sites}

Method {method}, {rounds} rounds. This folder contains the plan, the network's first weights, and for each hospital a
folder with its own file, the plan and, if the method uses a style codec of yours, the codec. All of these are data: no
code is sent to a hospital, neither now nor during the training.

## Coordinator

Run these commands on the machine that the hospitals reach as `{host}`.

1. Install medfed, and create a certificate authority and a startup kit for each participant (mutual TLS):

   ```
   pip install -e ".[nvflare]"     # in medfed's folder
   nvflare provision -p {folder}/project.yml -w {folder}/kits
   ```

2. Send each hospital its folder in `{folder}/hospitals`, with its folder in `{folder}/kits/medfed/prod_00` inside it,
   renamed to `kit`. Use a way that you trust, because the kit contains the hospital's private key.

3. Start the training:

   ```
   python -m medfed.coordinator run {folder}
   ```

   This command starts FLARE's server, waits for the hospitals, trains, and writes the model, the history and the ledger
   to `{folder}/run`. Before round 1 it prints a table of the hospitals' images, and names what does not fit together
   (`survey.csv`). If it is stopped, repeat it with `--resume`; it continues after the last finished round.

## Hospital

```
pip install -e ".[nvflare]"     # in medfed's folder
medfed site {first}.yaml --dry-run
medfed site {first}.yaml
```

1. Complete your file, which is called `{first}.yaml` at the hospital {first}: `data.root` is the folder that contains
   the folder `{first}` with your images.
2. The command with `--dry-run` checks your data and lists everything that would leave. It sends nothing.
3. If the list contains statistics in addition to weights, and you agree that they leave, write their names under
   `agrees.sends`. The last column says from how many of your patients each number of a statistic is computed, at least;
   fewer than `agrees.min_patients` are refused.
4. The last command shows the same list, asks for confirmation, joins the federation, and ends when the federation ends.
   Press Ctrl-C to leave; the same command joins again.

Write `medfed site`, not `python -m medfed.site`: Python would then import modules from the folder in which you are,
which the coordinator has sent. medfed reads certificates and the coordinator's address from `kit`, and runs no script
in it. medfed creates the folder of its results itself, and stops if a file is there that it has not written. The secret
from which the noise is derived is in your own folder `~/.local/state/medfed`; keep it until the federation is over.

In medfed's folder, `docs/how_to/coordinator.md` describes how each participant makes its own private key, so that the
coordinator does not have the hospitals' keys, and `docs/how_to/hospital.md` what a hospital can rely on, the keys of
`agrees`, and how a hospital applies privacy filters of NVIDIA FLARE.
"""


def site_file_text(site: str, n_rounds: int, data: Mapping[str, Any]) -> str:
    """Return a hospital's own YAML file, which the hospital then completes; `data` are further keys of its `data`."""
    own = textwrap.indent(strict_yaml.dump(dict(data)), "  ") if data else ""
    return SITE_FILE.format(site=site, rounds=n_rounds, min_patients=MIN_PATIENTS, data=own)


def certificate_files(sites: list[str], host: str, port: int) -> dict[str, dict[str, object]]:
    """Return, by path, the YAML files for `nvflare cert`, with which each participant makes its own private key."""
    server, clients, admin = _participants(sites, host, port)
    ports = {"fed_learn_port": port, "admin_port": port + 1}
    medfed = {"name": "medfed", "scheme": "grpc", "connection_security": "mtls"}
    return {
        "certificates/profile.yml": {**medfed, "server": {"host": host, **ports}},
        "certificates/server.yml": _project(server),
        "certificates/admin.yml": _project({**admin, "role": "lead"}),
        **{f"hospitals/{client['name']}/request.yml": _project(client) for client in clients},
    }


def project_file(sites: list[str], host: str, port: int) -> dict[str, object]:
    """Return FLARE's project file, from which `nvflare provision` makes the participants' startup kits."""
    server, clients, admin = _participants(sites, host, port)
    server |= {"connect_to": host, "default_host": host}
    static_files = {"config_folder": "config", "scheme": "grpc"}
    return {
        "api_version": 3,
        **_project(server, *clients, {**admin, "role": "project_admin"}),
        "builders": [
            {"path": "nvflare.lighter.impl.workspace.WorkspaceBuilder"},
            {"path": "nvflare.lighter.impl.static_file.StaticFileBuilder", "args": static_files},
            {"path": "nvflare.lighter.impl.cert.CertBuilder"},
            {"path": "nvflare.lighter.impl.signature.SignatureBuilder"},
        ],
    }


def _participants(sites: list[str], host: str, port: int) -> tuple[Participant, list[Participant], Participant]:
    """The server, the clients and the admin console, which uses port + 1, of a FLARE project."""
    server: Participant = {
        "name": host,
        "type": "server",
        "org": "coordinator",
        "fed_learn_port": port,
        "admin_port": port + 1,
    }
    clients: list[Participant] = [
        {"name": site, "type": "client", "org": f"org_{index}"} for index, site in enumerate(sites, start=1)
    ]
    return server, clients, {"name": ADMIN, "type": "admin", "org": "coordinator"}


def _project(*participants: Participant) -> dict[str, object]:
    return {"name": "medfed", "description": "A federation of medfed", "participants": list(participants)}
