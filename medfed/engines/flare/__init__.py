"""A federation over NVIDIA FLARE.

FLARE only transports messages here. The round loop runs in the coordinator's program and talks over a local socket
(`connection.FlareConnection`) to a controller inside FLARE's server (`controller.FlareController`). The controller
sends each request as a FLARE task to a site, where `executor.SiteExecutor` passes it to the site's own process.
"""
