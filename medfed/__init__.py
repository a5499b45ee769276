"""medfed: federated domain generalisation for medical imaging, on MONAI and PyTorch."""

__version__ = "0.1.0"
