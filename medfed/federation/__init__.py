"""The core of federated training: messages, sites, checks of replies, and the round loop.

Methods are in `medfed.methods`, and engines, which deliver the messages, in `medfed.engines`.
"""
