"""Datasets for PyTorch: by position, and as a stream that shards itself over ranks and workers and goes on from an exact place.

    from torchdata.stateful_dataloader import StatefulDataLoader

    stream = flarecli.torch.IterableDataset(flare.open("train"), batch=64, seed=1)
    loader = StatefulDataLoader(stream, batch_size=None, num_workers=4)

`flare.Loader` needs no torch, and no processes unless a transform is Python: try it first.
"""

from flarecli.errors import MissingLibraryError

try:
    import torch  # noqa: F401
except ImportError:
    raise MissingLibraryError(
        "PyTorch is not installed", hint="Install it: pip install 'flarecli[torch]'."
    ) from None

from flarecli.torch.datasets import IterableDataset, MapDataset
from flarecli.torch.tensors import tensors

__all__ = ["IterableDataset", "MapDataset", "tensors"]
