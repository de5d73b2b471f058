"""Those of sds's transforms that its README begins with: a picture as a tensor, and which fields a sample has. The first loads torch.

Anything else is a function of a sample; `flarecli.presets` decodes pictures, sound, video and text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from flarecli import read
from flarecli.errors import ValueFitError
from flarecli.model import Sample

__all__ = ["DecodeImageTransform", "EnsureFieldsTransform", "create_standard_image_pipeline"]


@dataclass(frozen=True, slots=True)
class DecodeImageTransform:
    """The path of a picture -> torch.uint8 [3, height, width], cut to the proportions and scaled."""

    input_field: str
    output_field: str
    resolution: tuple[int, int]

    def __call__(self, sample: Sample) -> Sample:
        import torch

        height, width = self.resolution
        with open(sample[self.input_field], "rb") as file:
            pixels = read.presets.image((width, height))(file.read())
        return {
            **sample,
            self.output_field: torch.from_numpy(pixels.copy()).permute(2, 0, 1).contiguous(),
        }


@dataclass(frozen=True, slots=True)
class EnsureFieldsTransform:
    """Refuse a sample that lacks a field, or has another type in it; `drop_others` leaves the other fields out."""

    fields_whitelist: Sequence[str] | Mapping[str, type]
    check_dummy_values: bool = False
    drop_others: bool = False

    def __call__(self, sample: Sample) -> Sample:
        kinds = (
            self.fields_whitelist
            if isinstance(self.fields_whitelist, Mapping)
            else dict.fromkeys(self.fields_whitelist, object)
        )
        for name, kind in kinds.items():
            if name not in sample or not isinstance(sample[name], kind):
                raise ValueFitError(
                    f"field {name!r} is {type(sample.get(name)).__name__}, {kind.__name__} is wanted"
                )
            if self.check_dummy_values and (
                sample[name] is None
                or (hasattr(sample[name], "__len__") and len(sample[name]) == 0)
            ):
                raise ValueFitError(f"field {name!r} is empty")
        return {name: sample[name] for name in kinds} if self.drop_others else sample


def create_standard_image_pipeline(
    image_field: str, resolution: tuple[int, int], output_field: str = "image"
) -> list[Callable[[Sample], Sample]]:
    """Make `output_field` a torch.uint8 [3, height, width] of the picture whose path `image_field` is; resolution is (height, width), pixels."""
    return [DecodeImageTransform(image_field, output_field, resolution)]
