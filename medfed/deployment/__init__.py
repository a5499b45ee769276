"""A real federation: a coordinator prepares and runs it, and hospitals join with their own data.

The coordinator uses `python -m medfed.coordinator` (`prepare`, `coordinate`), a hospital uses `medfed site`
(`take_part`, `join`, `dry_run`). At a hospital every request and every reply passes a guard that holds the hospital's
agreement (`agreement`, `guard`, `guarded_site`); what the hospital has counted cannot be written by anybody else
(`hospital_state`).
"""
