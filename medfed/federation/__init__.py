"""The core of federated training: the protocol of a method, messages, sites, checks of replies, and the round loop.

The methods themselves are in `medfed.methods`, and the engines, which deliver the messages, in `medfed.engines`.
"""
