"""Run one rank of a distributed run with accelerate, Lightning or the Trainer of transformers.

    training_peer.py LIBRARY DATASET OUT         write OUT.RANK: scenario -> rows of each epoch, or
                                                 an error
    training_peer.py ddp|ddp_spawn DATASET OUT   the same, but Lightning starts the processes

Each scenario is a program that a user could write. A row is its number `n`; an error is its message
and hint. The tests set RANK, WORLD_SIZE and MASTER_ADDR, as torchrun does.
"""

import json
import os
import sys

import torch
from torch.utils.data import DataLoader

try:
    import lightning
except ImportError:
    lightning = None

import flarecli as flare
from flarecli.errors import FlareError
from flarecli.torch import IterableDataset, MapDataset, tensors

BATCH = 4


def numbers(loader, epochs=1):
    """Return the rows of each epoch."""
    return [[n for batch in loader for n in batch["n"].tolist()] for _ in range(epochs)]


def result(scenario):
    try:
        return scenario()
    except FlareError as error:
        lines = [
            *str(error).strip().splitlines(),
            f"hint: {error.hint}",
        ]  # the error of a worker is a traceback
        at = max(
            k for k, line in enumerate(lines) if line.startswith("hint: ") and line != "hint: "
        )
        return {
            "error": lines[at - 1].removeprefix("flarecli.errors.UsageError: "),
            "hint": lines[at].removeprefix("hint: "),
        }


def accelerate_scenarios(data):
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration

    def run(make, epochs=1, prepare=True, **options):
        accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(**options))
        loader = make(accelerator)
        loader = accelerator.prepare(loader) if prepare else loader
        rows = numbers(loader, epochs)
        accelerator.wait_for_everyone()
        return {"rows": rows, "length": len(loader)}

    def batches(accelerator, workers=0, start=None, **options):
        stream = IterableDataset(data.select(["n"]), BATCH, seed=1, **options)
        start = start if workers else None
        return DataLoader(
            stream, batch_size=None, num_workers=workers, multiprocessing_context=start
        )

    def samples(accelerator, workers=0, **options):
        stream = IterableDataset(data.select(["n"]), BATCH, seed=1, collated=False, **options)
        return DataLoader(stream, batch_size=BATCH, num_workers=workers)

    def rank_of(accelerator):
        return {"rank": accelerator.process_index, "ranks": accelerator.num_processes}

    yield "prepared", lambda: run(batches, 2)
    yield "prepared, samples", lambda: run(samples)
    yield "prepared, samples, workers", lambda: run(lambda accelerator: samples(accelerator, 2))
    yield (
        "prepared, spawned worker",
        lambda: run(lambda accelerator: batches(accelerator, 1, "spawn")),
    )
    yield "not dispatched", lambda: run(samples, 2, dispatch_batches=False)
    yield (
        "not dispatched, workers",
        lambda: run(lambda accelerator: samples(accelerator, 2), dispatch_batches=False),
    )
    yield (
        "not dispatched, split",
        lambda: run(samples, dispatch_batches=False, split_batches=True),
    )
    yield "stateful", lambda: run(batches, 2, use_stateful_dataloader=True)
    yield "not prepared", lambda: run(batches, prepare=False)
    yield (
        "not prepared, worker",
        lambda: run(lambda accelerator: batches(accelerator, 1), prepare=False),
    )
    yield (
        "not prepared, spawned",
        lambda: run(lambda accelerator: batches(accelerator, 1, "spawn"), prepare=False),
    )
    yield (
        "ranks",
        lambda: run(
            lambda accelerator: batches(accelerator, **rank_of(accelerator)), prepare=False
        ),
    )
    yield (
        "ranks, worker",
        lambda: run(
            lambda accelerator: batches(accelerator, 1, **rank_of(accelerator)), prepare=False
        ),
    )
    yield (
        "ranks, prepared",
        lambda: run(lambda accelerator: batches(accelerator, **rank_of(accelerator))),
    )
    yield (
        "ranks, not dispatched",
        lambda: run(
            lambda accelerator: samples(accelerator, **rank_of(accelerator)), dispatch_batches=False
        ),
    )
    yield (
        "by position",
        lambda: run(
            lambda accelerator: DataLoader(MapDataset(data.select(["n"])), BATCH, shuffle=True)
        ),
    )
    yield (
        "loader",
        lambda: run(lambda accelerator: flare.Loader(data, BATCH, seed=1, **rank_of(accelerator))),
    )


class Model(lightning.LightningModule if lightning else object):
    """Records the rows of each epoch, and writes them to `out`.RANK."""

    def __init__(self, out=None):
        super().__init__()
        self.layer, self.seen, self.out = torch.nn.Linear(1, 1), [], out

    def on_train_epoch_start(self):
        self.seen.append([])

    def training_step(self, batch, _):
        n = tensors(batch)["n"]
        self.seen[-1] += n.tolist()
        return self.layer(n.float()[:, None]).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-9)

    def on_train_end(self):
        if self.out:
            length = self.trainer.num_training_batches
            with open(f"{self.out}.{self.global_rank}", "w") as file:
                json.dump({"launched": {"rows": self.seen, "length": length}}, file)


def trainer(strategy, epochs, **options):
    return lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy=strategy,
        max_epochs=epochs,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )


def launch(strategy, data, out):
    """Let Lightning start the processes; the stream is created before them."""
    stream = IterableDataset(data, BATCH, seed=1, drop_last=True)
    trainer(strategy, 1).fit(Model(out), DataLoader(stream, batch_size=None))


def lightning_scenarios(data):
    class Data(lightning.LightningDataModule):
        def train_dataloader(self):
            epoch = self.trainer.current_epoch
            stream = IterableDataset(data, BATCH, seed=1, epoch=epoch, drop_last=True)
            return DataLoader(stream, batch_size=None, collate_fn=tensors)

    def run(loader, epochs=1, **options):
        model, ran = Model(), trainer("ddp", epochs, **options)
        ran.fit(model, loader)
        return {"rows": model.seen, "length": ran.num_training_batches}

    def batches(workers=0, start=None):
        stream = IterableDataset(data, BATCH, seed=1, drop_last=True)
        return DataLoader(
            stream, batch_size=None, num_workers=workers, multiprocessing_context=start
        )

    # Created before the first `fit` initialises torch.distributed.
    first = batches()
    yield "iterable", lambda: run(first)
    # The worker is not forked: the earlier `fit` has started threads. In CPython 3.11, a child can
    # deadlock in PyOS_AfterFork_Child if a native thread creates its thread state during the fork.
    yield "iterable, worker", lambda: run(batches(1, "forkserver"))
    yield "iterable, spawned", lambda: run(batches(1, "spawn"))
    yield "epochs", lambda: run(Data(), 2, reload_dataloaders_every_n_epochs=1)
    yield "by position", lambda: run(DataLoader(MapDataset(data), BATCH, shuffle=True), 2)
    rank = int(os.environ["RANK"])
    yield "loader", lambda: run(flare.Loader(data, BATCH, 1, rank=rank, ranks=2, drop_last=True))


def transformers_scenarios(data):
    from transformers import Trainer, TrainingArguments

    class Recorder(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.seen = torch.nn.Linear(1, 1), []

        def forward(self, n=None, labels=None):
            self.seen.append(n.tolist())
            return {"loss": self.layer(n.float()[:, None]).mean()}

    def run(dataset, epochs=1, **options):
        model = Recorder()
        arguments = TrainingArguments(
            output_dir=sys.argv[3] + ".trainer",
            per_device_train_batch_size=BATCH,
            num_train_epochs=epochs,
            use_cpu=True,
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
            **options,
        )
        trainer = Trainer(model, arguments, train_dataset=dataset)
        trainer.train()
        return {
            "rows": [[n for batch in model.seen for n in batch]],
            "length": trainer.state.max_steps,
        }

    def samples(**options):
        return IterableDataset(data.select(["n"]), BATCH, seed=1, collated=False, **options)

    rank = int(os.environ["RANK"])
    yield "iterable", lambda: run(samples(), 2)
    yield "iterable, workers", lambda: run(samples(), dataloader_num_workers=2)
    yield (
        "not dispatched",
        lambda: run(samples(), accelerator_config={"dispatch_batches": False}),
    )
    yield "ranks", lambda: run(samples(rank=rank, ranks=2))
    yield "by position", lambda: run(MapDataset(data.select(["n"])), 2)


def main():
    library, dataset, out = sys.argv[1:]
    data = flare.open(dataset)
    if library.startswith("ddp"):
        launch(library, data, out)
    else:
        scenarios = globals()[f"{library}_scenarios"](data)
        results = {name: result(scenario) for name, scenario in scenarios}
        with open(f"{out}.{os.environ['RANK']}", "w") as file:
            json.dump(results, file)
    if torch.distributed.is_initialized():  # otherwise the threads of gloo may abort the exit
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
