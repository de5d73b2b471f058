"""Encode and decode values with an original library. An interpreter that has it runs this script;
it does not import flare.

    encodings_peer.py mds|granular     print for each of the values of the library the encoded bytes
                                       as hex, or null if it fails; then read lines of JSON,
                                       [encoding, hex], and print each decoded value

The tests load this file too, because both libraries must encode the same values.
"""

import hashlib
import io
import json
import random
import sys
from decimal import Decimal

import numpy as np
from PIL import Image

DTYPES = (
    "uint8",
    "int8",
    "uint16",
    "int16",
    "float16",
    "uint32",
    "int32",
    "float32",
    "uint64",
    "int64",
    "float64",
)
MODES = ("1", "L", "LA", "RGB", "RGBA", "CMYK", "YCbCr", "I", "F", "I;16", "HSV", "LAB")
JSONS = (
    {"b": 1, "a": [1, None, True, "é\ud800", 1.5]},
    {"nan": float("nan"), "inf": -float("inf"), "big": 10**40},
    [],
    {},
    "text",
    'q"\\\n\x7f',
    None,
    True,
    -0.0,
    (1, 2),
    {1: 2},
    [[[]]],
)
NESTED = {
    "b": [
        1,
        -1,
        255,
        256,
        65535,
        65536,
        2**32 - 1,
        2**32,
        2**64 - 1,
        -32,
        -33,
        -128,
        -129,
        -(2**15),
        -(2**15) - 1,
        -(2**31),
        -(2**63),
    ]
}


def picture(mode, size=(7, 5), seed=3):
    return Image.frombytes(
        mode, size, random.Random(seed).randbytes(len(Image.new(mode, size).tobytes()))
    )


def jpeg(seed):
    out = io.BytesIO()
    picture("RGB", seed=seed).save(out, "JPEG")
    return out.getvalue()


def numpy_arrays():
    """Yield arrays of every dtype, with unusual shapes and layouts."""
    for dtype in DTYPES:
        plain = np.arange(24).astype(dtype)
        yield plain
        yield plain.reshape(2, 3, 4)
        yield np.asfortranarray(plain.reshape(4, 6))
        yield plain.reshape(4, 6)[::2, ::-1]
        yield plain.reshape(4, 6).T
    yield np.zeros((1, 255), "int8")
    yield np.zeros((256, 1), "int8")
    yield np.zeros((65535,), "uint8")
    yield np.zeros((65536,), "uint8")
    yield np.ones((1,) * 20, "float16")


def numbers(name, rng):
    if name.startswith("float"):
        yield from (
            0.0,
            -0.0,
            1.5,
            float("nan"),
            float("inf"),
            -float("inf"),
            1,
            True,
            "2.5",
            5e-324,
            1e-45,
            65504.0,
            2.0**-24,
            65519.9,
        )
        yield from (rng.uniform(-1, 1) * 10 ** rng.randint(-6, 4) for _ in range(20))
        return
    bits, unsigned = int(name.strip("uint") or 64), name.startswith("u")
    low, high = (0, 2**bits - 1) if unsigned else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    yield from (low, high, 0, 1, True)
    yield from (rng.randint(low, high) for _ in range(5))
    if name != "int":
        yield from ("5", np.uint8(7), np.array([3], "int32"), 3.0)


def mds_values():
    rng = random.Random(1)
    for name in ("int", *DTYPES):
        yield from ((name, value) for value in numbers(name, rng))
    for text in ("", "a", "é漢\U0001f642", "\0", np.str_("n")):
        yield "str", text
    yield from (("bytes", data) for data in (b"", b"\0\xff"))
    yield from (
        ("int", b"12345678"),
        ("json", b"not json"),
        ("png", b"no picture"),
        ("pkl", b"no pickle"),
        ("uint8", b"\7"),
    )
    yield from (("str_int", value) for value in (0, -1, 10**40, -(10**18)))
    floats = (
        0.0,
        -0.0,
        1e16,
        1e-5,
        1e-4,
        0.1,
        1e22,
        5e-324,
        float("nan"),
        float("inf"),
        -float("inf"),
        np.float64(2.5),
        123456789.0,
    )
    yield from (
        ("str_float", value)
        for value in (
            *floats,
            *(rng.uniform(-1, 1) * 10 ** rng.randint(-30, 30) for _ in range(30)),
        )
    )
    yield from (
        ("str_decimal", Decimal(text))
        for text in ("1.10", "1E+5", "NaN", "-0", "Infinity", "1e-30", "12345678901234567890.123")
    )
    yield from (("json", value) for value in (*JSONS, np.arange(6).reshape(2, 3)))
    for array in numpy_arrays():
        yield "ndarray", array
        yield "ndarray:", array
        yield f"ndarray:{array.dtype}", array
        yield f"ndarray:{array.dtype}:{','.join(map(str, array.shape))}", array
    yield "ndarray:int32: 2, 3", np.arange(6, dtype="int32").reshape(2, 3)
    for mode in MODES:
        yield "pil", picture(mode)
        yield "list[pil]", [picture(mode), picture(mode, (1, 1))]
    yield "pil", Image.frombytes("P", (2, 2), b"\0\1\2\3")
    for mode in ("L", "RGB", "CMYK", "1"):
        yield "jpeg", picture(mode)
    for mode in ("1", "L", "LA", "P", "RGB", "RGBA", "I;16"):
        yield "png", picture(mode)
    yield "jpeg", Image.open(io.BytesIO(jpeg(5)))
    yield "list[jpeg]", [picture("RGB"), picture("L")]
    yield "list[png]", [picture("RGBA")]
    for name in ("list[pil]", "list[jpeg]", "list[png]"):
        yield name, []
    for name in ("jpeg_array", "jpegarray"):
        yield name, []
        yield name, [jpeg(1), jpeg(2)]
        yield name, (jpeg(1), bytearray(jpeg(3)))


def granular_values():
    rng = random.Random(2)
    yield from (("bytes", data) for data in (b"", b"\0\xff"))
    yield from (("utf8", text) for text in ("", "é漢\U0001f642"))
    edges = [
        value + by
        for k in range(1, 9)
        for value in (1 << 8 * k, 1 << 8 * k - 1)
        for by in (-2, -1, 0, 1)
    ]
    yield from (
        ("int", value)
        for value in (
            0,
            1,
            127,
            *edges,
            *(rng.randrange(1 << rng.randrange(1, 63)) for _ in range(200)),
        )
        if value < 1 << 63
    )
    yield from (("i64", value) for value in (0, -1, 2**63 - 1, -(2**63)))
    yield from (("u64", value) for value in (0, 2**64 - 1))
    sizes = (0, 1, 15, 16, 31, 32, 255, 256, 65535, 65536)
    values = (
        None,
        True,
        0.1,
        float("inf"),
        *NESTED["b"],
        NESTED,
        *("x" * size for size in sizes),
        *(b"x" * size for size in sizes),
    )
    values += (
        *([0] * size for size in sizes),
        *({f"{i:05}": i for i in range(size)} for size in (0, 15, 16, 300)),
        (1, (2,)),
    )
    for name in ("msgpack", "tree"):
        yield from ((name, value) for value in values)
    arrays = [
        *numpy_arrays(),
        np.array(5),
        np.zeros((0, 3)),
        np.array([True]),
        np.array([1j]),
        np.array(["ab", "é"]),
        np.array([b"x"]),
        np.arange(3, dtype=">i4"),
    ]
    for array in arrays:
        if array.flags.c_contiguous:
            yield "array", array
            yield "tree", {"a": [array, {"b": array}], "c": "_"}
            yield "tree", array


VALUES = {"mds": mds_values, "granular": granular_values}


def described(value):
    """Return a decoded value as JSON, equal for equal values of any library."""
    if isinstance(value, Image.Image):
        value.load()
        return [
            "image",
            value.mode,
            list(value.size),
            hashlib.sha256(value.tobytes()).hexdigest(),
        ]
    if isinstance(value, np.ndarray):
        return [
            "array",
            value.dtype.str,
            list(value.shape),
            hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest(),
        ]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, (list, tuple)):
        return [described(one) for one in value]
    if isinstance(value, dict):
        return {str(key): described(one) for key, one in value.items()}
    if isinstance(value, (bytes, str)) and len(value) > 1000:
        return [
            type(value).__name__,
            hashlib.sha256(value if isinstance(value, bytes) else value.encode()).hexdigest(),
        ]
    return [type(value).__name__, repr(value)]


def library(name):
    if name == "mds":
        from streaming.base.format.mds.encodings import mds_decode, mds_encode

        return mds_encode, mds_decode
    import granular

    return lambda kind, value: granular.encoders[kind](value), lambda kind, data: granular.decoders[
        kind
    ](data)


def main(name):
    encode, decode = library(name)
    for kind, value in VALUES[name]():
        try:
            print(json.dumps(encode(kind, value).hex()))
        except Exception:
            print("null")
    for line in sys.stdin:
        kind, data = json.loads(line)
        try:
            print(json.dumps(described(decode(kind, bytes.fromhex(data)))))
        except Exception as error:
            print(json.dumps({"error": repr(error)}))


if __name__ == "__main__":
    main(sys.argv[1])
