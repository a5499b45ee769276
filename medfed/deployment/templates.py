"""What a coordinator hands out: a hospital's file to fill in, FLARE's project, and the commands for both sides."""

from __future__ import annotations

ADMIN = "coordinator@medfed.org"  # FLARE wants the name of a console to look like an address

HOSPITAL = """# What {site} brings to the federation, and what it agrees to. Paths are as seen from this file.
#   python -m medfed.site {site}.yaml --dry-run      # check the data, show what would leave, send nothing
#   python -m medfed.site {site}.yaml                # the same, ask, and join

site: {site}
plan: plan.yaml          # what all hospitals agreed on; read it
kit: kit                 # FLARE's startup kit of this hospital, unpacked
folder: medfed_{site}    # ledger, log, final model, and what must survive a restart

data:                    # what of the plan is this hospital's own: keys of the plan's data block
  root: data             # the folder that holds the folder {site}

agrees:
  sends: []            # statistics that may leave beside weights; --dry-run names what the method would send
  rounds: {rounds}
  megabytes_per_round: 100
"""

README = """# A federation of {sites}

{method}, {rounds} rounds. Everything here is data: the plan, the network's first weights, and for each hospital a
folder with its file, the plan and, where the method redraws images with a codec of yours, that. No code travels, now or
later.

## The coordinator, on the machine that hospitals reach as `{host}`

```
pip install -e ".[nvflare]"     # in medfed's folder
nvflare provision -p {folder}/project.yml -w {folder}/kits
```

makes a certificate authority and a startup kit for each participant (mutual TLS). Send each hospital, over a way that
you trust, its folder of `{folder}/hospitals`, with its folder of `{folder}/kits/medfed/prod_00` in it as `kit`. Then

```
python -m medfed.coordinator run {folder}
```

starts FLARE's server, waits for the hospitals, trains, and leaves model, history and ledger in `{folder}/run`. If it is
stopped, `--resume` goes on after the last finished round.

## A hospital

```
pip install -e ".[nvflare]"     # in medfed's folder
python -m medfed.site {first}.yaml --dry-run
python -m medfed.site {first}.yaml
```

The first checks the data and shows what would leave; nothing is sent. The hospital writes down what is more than
weights under `agrees.sends`. The second asks, joins and ends with the federation.
Ctrl-C leaves; the same command comes back.

FLARE's privacy filters act on what leaves, if the hospital writes a file `kit/local/privacy.json` before it joins:

```json
{{"scopes": [{{"name": "hospital", "task_result_filters": [
    {{"path": "nvflare.app_common.filters.percentile_privacy.PercentilePrivacy",
     "args": {{"percentile": 10, "gamma": 4}}}}]}}],
 "default_scope": "hospital"}}
```

Weights come to a filter as a DXO of kind WEIGHTS, everything else as STATISTICS. They are weights, not what changed in
them: the filter above sets the smallest tenth to 0 and cuts at 4, and is for networks without batch norm. A class of
the hospital's own goes in `kit/local/custom`. No job can name a filter, or another scope than this one. If a filter
takes an entry out or makes it NaN, the coordinator refuses the update and says whose it is. The hospital's ledger is
written before its filters act; `kit/JOB/audit.log` has a line each time that one did.
"""


def site_file_text(site: str, n_rounds: int) -> str:
    """A hospital's YAML, to be filled in. What the method sends is for the hospital to look at and write down."""
    return HOSPITAL.format(site=site, rounds=n_rounds)


def project_file(sites: list[str], host: str, port: int) -> dict[str, object]:
    """FLARE's project for `nvflare provision`."""
    server = {"name": host, "type": "server", "org": "coordinator", "fed_learn_port": port, "admin_port": port + 1,
              "connect_to": host, "default_host": host}  # fmt: skip
    clients = [{"name": site, "type": "client", "org": f"org_{index}"} for index, site in enumerate(sites, start=1)]
    admin = {"name": ADMIN, "type": "admin", "org": "coordinator", "role": "project_admin"}
    builders: dict[str, dict[str, str]] = {
        "workspace.WorkspaceBuilder": {},
        "static_file.StaticFileBuilder": {"config_folder": "config", "scheme": "grpc"},
        "cert.CertBuilder": {},
        "signature.SignatureBuilder": {},
    }
    return {
        "api_version": 3, "name": "medfed", "description": "A federation of medfed",
        "participants": [server, *clients, admin],
        "builders": [
            {"path": f"nvflare.lighter.impl.{name}", **({"args": arguments} if arguments else {})}
            for name, arguments in builders.items()
        ],
    }  # fmt: skip
