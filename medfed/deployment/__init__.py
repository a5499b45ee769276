"""A real federation: a coordinator prepares and runs it, and hospitals join with their own data.

The coordinator uses `python -m medfed.coordinator`, a hospital `medfed site`. At a hospital every request and every
reply passes a guard that enforces the hospital's agreement (`agreement`, `guard`, `guarded_site`).
"""
