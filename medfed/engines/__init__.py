"""Engines carry messages between the coordinator and the sites (`medfed.federation.engine.Engine`).

`in_process` runs all sites in this process or divides them among worker processes, `processes` runs each site in a
process of its own, `nvflare` uses NVIDIA FLARE's simulator, and `medfed.engines.flare` connects real hospitals over a
network. All give bit-identical results, unless a hospital's own privacy filters change its replies.
"""
