"""Read versions of a dataset with an original library. An interpreter that has the library runs
this script; it does not import flare.

    changes_peer.py mosaicml|wids|webdataset|granular     read addresses, one JSON value per line of
                                                          standard input

For each address, the script prints the rows as a JSON list of objects with texts, or the name of
the error as a text.

    mosaicml     [REMOTE, LOCAL]: folders; an `index.json` in LOCAL is not downloaded again
    wids         [INDEX, CACHE]: a `shardindex.json`, and a folder for the downloaded tars
    webdataset   [PATH, …]
    granular     a folder with shards
"""

import json
import sys


def mosaicml(address):
    from streaming import StreamingDataset

    remote, local = address
    data = StreamingDataset(
        remote=remote, local=local, shuffle=False, batch_size=1, download_retry=1
    )
    return [data[i] for i in range(len(data))]


def wids(address):
    import wids

    index, cache = address
    data = wids.ShardListDataset(index, cache_dir=cache, transformations=[])
    return [_without_names(data[i]) for i in range(len(data))]


def webdataset(paths):
    import webdataset

    data = webdataset.WebDataset(paths, shardshuffle=False, empty_check=False)
    return [_without_names(sample) for sample in data]


def granular(address):
    import granular

    with granular.ShardedDatasetReader(address, granular.decoders) as reader:
        return [reader[i] for i in range(len(reader))]


def _without_names(sample):
    return {
        name.removeprefix("."): getattr(value, "getvalue", lambda value=value: value)()
        for name, value in sample.items()
        if not name.startswith("__")
    }


def text(value):
    return value.decode() if isinstance(value, bytes) else str(value)


def rows(read, address):
    try:
        samples = read(address)
    except (OSError, RuntimeError, ValueError) as error:
        return type(error).__name__
    return [{name: text(value) for name, value in sample.items()} for sample in samples]


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(rows(globals()[sys.argv[1]], json.loads(line))), flush=True)
