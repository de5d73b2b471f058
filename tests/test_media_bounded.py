"""Pictures decoded in children: what is whole passes, what is not is told, and nothing ends the run."""

import io
import pickle
import struct
import subprocess
import sys
import textwrap
import threading
import zlib

import pytest
from PIL import Image

from flarecli.media import Decoders, bounded, pixels


def picture(kind="jpeg", size=(60, 40), frames=1, **options):
    out = io.BytesIO()
    first, *rest = [Image.effect_noise(size, 50 + i).convert("RGB") for i in range(frames)]
    first.save(out, kind, **({"save_all": True, "append_images": rest} if rest else {}), **options)
    return out.getvalue()


def empty_png(width, height):
    """A PNG of a few hundred bytes that says it is as large as asked for."""

    def chunk(name, data):
        return (
            struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        )

    head = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(bytes((width // 8 + 1) * 8)))
        + chunk(b"IEND", b"")
    )


@pytest.fixture
def decoders():
    made = Decoders()
    yield made
    made.close()


def test_whole_pictures_pass_and_one_child_decodes_them_all(decoders):
    for kind in ("jpeg", "png", "gif", "webp", "tiff", "bmp"):
        assert decoders.reason(picture(kind)) == "", kind
    assert (
        decoders.reason(picture("gif", frames=4))
        == decoders.reason(picture("tiff", frames=3))
        == ""
    )
    assert decoders.started == 1


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "no picture"),
        (
            b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
            "no picture",
        ),  # Pillow would run Ghostscript for it
        (picture()[:-30], "image file is truncated (8 bytes not processed)"),
        (
            empty_png(60_000, 60_000),
            "a picture of 60000 x 60000 pixels, 134217728 are decoded at most",
        ),
    ],
)
def test_what_is_not_whole_is_told_and_the_child_goes_on(decoders, data, said):
    answer = decoders.reason(data)
    assert (
        answer.startswith("image file is truncated (")
        if said.startswith("image")
        else answer == said
    )
    assert (decoders.reason(picture()), decoders.started) == ("", 1)


def test_a_fault_in_a_later_frame_is_found(decoders):
    data = bytearray(picture("tiff", frames=3, compression="tiff_lzw"))
    whole = decoders.reason(bytes(data))
    third = picture("tiff", frames=2, compression="tiff_lzw")
    data[len(third) :] = bytes(len(data) - len(third))  # what the third frame has is gone
    assert (whole, decoders.reason(bytes(data)) != "") == ("", True)


def test_a_picture_that_takes_too_much_memory_is_told():
    decoders = Decoders(memory=120 << 20)
    answers = [decoders.reason(data) for data in (picture(), empty_png(11_000, 11_000), picture())]
    assert answers == [
        "",
        "a picture of 11000 x 11000 pixels takes more memory than decoding may have",
        "",
    ]
    assert decoders.started == 1
    decoders.close()


@pytest.fixture
def odd(monkeypatch, tmp_path):
    """A program that dies of one picture, stops at another, and talks too much of a third."""
    program = tmp_path / "odd.py"
    text = """
        import importlib.util, os, signal, sys, time
        spec = importlib.util.spec_from_file_location("pixels", PATH)
        pixels = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(pixels)

        def reason(data, most, real=pixels.reason):
            if data == b"kill":
                os.kill(os.getpid(), signal.SIGSEGV)
            if data == b"exit":
                os._exit(3)
            if data == b"stop":
                time.sleep(60)
            return "x" * 5000 if data == b"long" else real(data, most)

        pixels.reason = reason
        pixels.serve(sys.stdin.buffer, sys.stdout.buffer, int(sys.argv[2]))
    """
    program.write_text(textwrap.dedent(text).replace("PATH", repr(pixels.__file__)))

    class Program:
        __file__ = str(program)

    monkeypatch.setattr(bounded, "pixels", Program)


def test_a_decoder_that_dies_or_stops_is_told_and_another_goes_on(odd):
    decoders, good = Decoders(), picture()
    told = [decoders.reason(data) for data in (good, b"kill", good, b"exit", b"long", good)]
    died = "its decoder died of it (SIGSEGV)"
    assert told == [
        "",
        died,
        "",
        "its decoder died of it (exit 3)",
        "its decoder gave no answer",
        "",
    ]
    assert decoders.started == 4
    decoders.close()
    late = Decoders(seconds=0.5)
    assert (late.reason(b"stop"), late._free) == ("takes more than 0.5 s to decode", [])


def test_threads_have_a_child_each_and_no_more(decoders):
    pictures = [picture(size=(300 + i, 300)) for i in range(12)]
    answers = []

    def ask(some):
        answers.extend(decoders.reason(one) for one in some)

    threads = [threading.Thread(target=ask, args=(pictures[k::3],)) for k in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (answers, decoders.started <= 3) == ([""] * 12, True)


def test_closing_ends_the_children_and_a_copy_starts_its_own(decoders):
    assert decoders.reason(picture()) == ""
    (child,) = decoders._free
    decoders.close()
    assert child._process.returncode == 0
    other = pickle.loads(pickle.dumps(decoders))
    assert (other.reason(picture()), other.started) == ("", 1)
    other.close()


def test_the_program_imports_nothing_of_the_package():
    code = "import runpy, sys; runpy.run_path(sys.argv[1]); print([name for name in sys.modules if name.startswith('flarecli')])"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, pixels.__file__],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "[]\n"


def test_a_value_larger_than_a_child_may_be_is_given_to_none():
    decoders = Decoders(memory=1000)
    assert decoders.reason(bytes(1001)) == "takes 1001 bytes, decoding may have 1000"
    assert decoders.started == 0
