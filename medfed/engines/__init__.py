"""Engines carry messages between the coordinator and the sites (`medfed.federation.engine.Engine`).

All give bit-identical results, unless a hospital's own privacy filters change its replies (`medfed.engines.flare`).
"""
