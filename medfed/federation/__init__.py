"""The core of federated training: messages, sites, checks of replies, and the round loop.

Nothing here knows a particular method, a data set, or how messages travel: methods are in `medfed.methods`, engines in
`medfed.engines`.
"""
