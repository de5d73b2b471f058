"""Two transforms of sds: the first decodes an image, and the second checks the fields of a sample.

`flarecli.presets` has more decoders for images, audio, video and text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import dataclass

from flarecli import read
from flarecli.errors import ValueFitError
from flarecli.model import Sample

__all__ = ["DecodeImageTransform", "EnsureFieldsTransform", "create_standard_image_pipeline"]


@dataclass(frozen=True, slots=True)
class DecodeImageTransform:
    """Transform that decodes an image file as a tensor: uint8 [3, height, width].

    input_field   field with the path of the file
    output_field  field for the tensor
    resolution    (height, width) in pixels, to which the image is cropped and scaled
    """

    input_field: str
    output_field: str
    resolution: tuple[int, int]

    def __call__(self, sample: Sample) -> Sample:
        import torch

        height, width = self.resolution
        with open(sample[self.input_field], "rb") as file:
            pixels = read.decoders.image((width, height))(file.read())
        tensor = torch.from_numpy(pixels.copy()).permute(2, 0, 1).contiguous()
        return {**sample, self.output_field: tensor}


@dataclass(frozen=True, slots=True)
class EnsureFieldsTransform:
    """Transform that raises ValueFitError if a field is missing or has a different type.

    fields_whitelist    names of the required fields, or field name -> type
    check_dummy_values  also raise ValueFitError if a field is None or empty
    drop_others         remove all other fields from the sample
    """

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
                    f"field {name!r}: expected {kind.__name__}, "
                    f"got {type(sample.get(name)).__name__}"
                )
            value = sample[name]
            is_empty = isinstance(value, Sized) and len(value) == 0
            if self.check_dummy_values and (value is None or is_empty):
                raise ValueFitError(f"field {name!r} is empty")
        return {name: sample[name] for name in kinds} if self.drop_others else sample


def create_standard_image_pipeline(
    image_field: str, resolution: tuple[int, int], output_field: str = "image"
) -> list[Callable[[Sample], Sample]]:
    """Return a list with one DecodeImageTransform, for `transforms=`.

    image_field   field with the path of the image file
    resolution    (height, width) in pixels
    output_field  field for the tensor
    """
    return [DecodeImageTransform(image_field, output_field, resolution)]
