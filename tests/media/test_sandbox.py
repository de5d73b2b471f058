"""Images decoded in child processes: damage is reported, and no image ends the run."""

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

from flarecli.media import Sandbox, sandbox, sandbox_worker


def picture(kind="jpeg", size=(60, 40), frames=1, **options):
    out = io.BytesIO()
    first, *rest = [Image.effect_noise(size, 50 + i).convert("RGB") for i in range(frames)]
    first.save(out, kind, **({"save_all": True, "append_images": rest} if rest else {}), **options)
    return out.getvalue()


def empty_png(width, height):
    """Return a PNG of a few hundred bytes whose header claims this size."""

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
    with Sandbox() as images:
        yield images


def test_one_child_decodes_all_intact_images(decoders):
    for kind in ("jpeg", "png", "gif", "webp", "tiff", "bmp"):
        assert decoders.check(picture(kind)) == "", kind
    assert (
        decoders.check(picture("gif", frames=4)) == decoders.check(picture("tiff", frames=3)) == ""
    )
    assert decoders.started == 1


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not an image"),
        (
            b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
            "not an image",
        ),  # Pillow would run Ghostscript for it
        (picture()[:-30], "image file is truncated (8 bytes not processed)"),
        (
            empty_png(60_000, 60_000),
            "60000×60000 pixels; the maximum is 134217728",
        ),
    ],
)
def test_damage_is_reported_and_the_child_continues(decoders, data, message):
    answer = decoders.check(data)
    assert (
        answer.startswith("image file is truncated (")
        if message.startswith("image")
        else answer == message
    )
    assert (decoders.check(picture()), decoders.started) == ("", 1)


def test_damage_in_a_later_frame_is_found(decoders):
    data = bytearray(picture("tiff", frames=3, compression="tiff_lzw"))
    whole = decoders.check(bytes(data))
    third = picture("tiff", frames=2, compression="tiff_lzw")
    data[len(third) :] = bytes(len(data) - len(third))  # the third frame is lost
    assert (whole, decoders.check(bytes(data)) != "") == ("", True)


def test_an_image_that_needs_too_much_memory_is_reported():
    decoders = Sandbox(memory=120 << 20)
    answers = [decoders.check(data) for data in (picture(), empty_png(11_000, 11_000), picture())]
    assert answers == [
        "",
        "11000×11000 pixels; decoding needs too much memory",
        "",
    ]
    assert decoders.started == 1
    decoders.close()


@pytest.fixture
def faulty_worker(monkeypatch, tmp_path):
    """A worker that crashes, exits, stalls or sends too long a message, depending on the image."""
    program = tmp_path / "faulty.py"
    text = """
        import importlib.util, os, signal, sys, time
        spec = importlib.util.spec_from_file_location("worker", PATH)
        worker = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(worker)

        def decode(data, max_pixels, real=worker.decode):
            if data == b"kill":
                os.kill(os.getpid(), signal.SIGSEGV)
            if data == b"exit":
                os._exit(3)
            if data == b"stop":
                time.sleep(60)
            return (3, "x" * 5000) if data == b"long" else real(data, max_pixels)

        worker.decode = decode
        worker.serve(sys.stdin.buffer, sys.stdout.buffer, int(sys.argv[2]))
    """
    program.write_text(textwrap.dedent(text).replace("PATH", repr(sandbox_worker.__file__)))

    class Program:
        __file__ = str(program)

    monkeypatch.setattr(sandbox, "sandbox_worker", Program)


def test_a_decoder_that_crashes_or_stalls_is_replaced(faulty_worker):
    decoders, good = Sandbox(), picture()
    told = [decoders.check(data) for data in (good, b"kill", good, b"exit", b"long", good)]
    died = "the decoder crashed (SIGSEGV)"
    assert told == [
        "",
        died,
        "",
        "the decoder crashed (exit 3)",
        "the decoder sent no response",
        "",
    ]
    assert decoders.started == 4
    decoders.close()
    late = Sandbox(timeout_s=0.5)
    assert (late.check(b"stop"), late._idle) == ("decoding takes more than 0.5 s", [])


def test_each_thread_uses_its_own_child(decoders):
    pictures = [picture(size=(300 + i, 300)) for i in range(12)]
    answers = []

    def ask(some):
        answers.extend(decoders.check(one) for one in some)

    threads = [threading.Thread(target=ask, args=(pictures[k::3],)) for k in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (answers, decoders.started <= 3) == ([""] * 12, True)


def test_close_ends_the_children_and_a_pickled_copy_starts_its_own(decoders, monkeypatch):
    monkeypatch.setattr(sandbox, "END_S", 60.0)  # a busy machine may take longer
    assert decoders.check(picture()) == ""
    (child,) = decoders._idle
    decoders.close()
    assert child._process.returncode == 0
    other = pickle.loads(pickle.dumps(decoders))
    assert (other.check(picture()), other.started) == ("", 1)
    other.close()


def test_the_worker_imports_nothing_of_the_package():
    code = (
        "import runpy, sys; runpy.run_path(sys.argv[1])\n"
        "print([name for name in sys.modules if name.startswith('flarecli')])"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, sandbox_worker.__file__],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "[]\n"


def test_an_image_larger_than_the_memory_limit_is_not_decoded():
    decoders = Sandbox(memory=1000)
    assert decoders.check(bytes(1001)) == "1001 bytes; the maximum is 1000"
    assert decoders.started == 0
