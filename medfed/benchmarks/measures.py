"""All measurements of `python -m medfed.benchmark`: for each its name, its function, and the function of its table.

The names are those of `medfed.cli.defaults.MEASUREMENTS`, in the same order.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from medfed.benchmarks.aggregation import aggregation_table, time_aggregation
from medfed.benchmarks.elcfs_round import elcfs_table, time_elcfs
from medfed.benchmarks.exchange import exchange_table, time_exchange
from medfed.benchmarks.federated_round import round_table, time_round
from medfed.benchmarks.gpu import gpu_table, time_gpu
from medfed.benchmarks.images import images_table, time_images
from medfed.benchmarks.jobs import jobs_table, time_jobs
from medfed.benchmarks.metrics import metrics_table, time_metrics
from medfed.benchmarks.networks import networks_table, time_networks

MEASURES: tuple[tuple[str, Callable[..., Any], Callable[[Any], str]], ...] = (
    ("exchange", time_exchange, exchange_table),
    ("round", time_round, round_table),
    ("larger_round", partial(time_round, size=128, n_sites=2), round_table),
    ("elcfs", time_elcfs, elcfs_table),
    ("jobs", time_jobs, jobs_table),
    ("images", time_images, images_table),
    ("networks", time_networks, networks_table),
    ("metrics", time_metrics, metrics_table),
    ("aggregation", time_aggregation, aggregation_table),
    ("gpu", time_gpu, gpu_table),
)
