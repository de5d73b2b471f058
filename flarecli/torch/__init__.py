"""PyTorch datasets: a map-style dataset, and a sharded iterable dataset that can be resumed.

    from torchdata.stateful_dataloader import StatefulDataLoader

    stream = flarecli.torch.IterableDataset(flare.open("train"), batch=64, seed=1)
    loader = StatefulDataLoader(stream, batch_size=None, num_workers=4)

Consider `flare.Loader` first. It works without torch, and it needs worker processes only for
transforms in pure Python.
"""

from flarecli.errors import MissingLibraryError

try:
    import torch  # noqa: F401
except ImportError:
    raise MissingLibraryError(
        "PyTorch is not installed", hint="Run `pip install 'flarecli[torch]'`."
    ) from None

from flarecli.torch.datasets import IterableDataset, MapDataset
from flarecli.torch.tensor_batches import tensors
from flarecli.torch.versions import same_version

__all__ = ["IterableDataset", "MapDataset", "same_version", "tensors"]
