"""RecordIO agrees with MXNet's own reader and writer, and damage is told."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.recordio import (
    MAGIC,
    RecordError,
    RecordFile,
    frame,
    index_rows,
    pack_image,
    unpack_image,
    write_records,
)

PIECES = st.sampled_from([MAGIC, MAGIC, MAGIC[:3], b"\0", b"abcd", b"pixels of an image"])
PAYLOADS = st.lists(PIECES, min_size=1, max_size=8).map(b"".join)


def write(folder: Path, payloads: list[bytes]) -> Path:
    write_records(folder / "a", payloads)
    return folder / "a.rec"


def write_with_mxnet(folder: Path, payloads: list[bytes]) -> None:
    import mxnet as mx

    writer = mx.recordio.MXIndexedRecordIO(str(folder / "mx.idx"), str(folder / "mx.rec"), "w")
    for key, payload in enumerate(payloads):
        writer.write_idx(key, payload)
    writer.close()


@pytest.mark.medium
@settings(max_examples=150)
@given(st.lists(PAYLOADS | st.binary(min_size=1, max_size=40), min_size=1, max_size=5))
def test_files_are_byte_for_byte_those_of_mxnet_and_read_back(payloads: list[bytes]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rec = write(folder, payloads)
        write_with_mxnet(folder, payloads)
        assert rec.read_bytes() == (folder / "mx.rec").read_bytes()
        assert (folder / "a.idx").read_bytes() == (folder / "mx.idx").read_bytes()
        records = RecordFile(rec)
        assert [records.read(begin) for _, begin in index_rows(folder / "a.idx")] == payloads


def test_the_image_header_is_that_of_mxnet() -> None:
    import mxnet as mx

    payload = pack_image(999, 1_281_166, b"jpeg")
    header, image = mx.recordio.unpack(payload)
    assert (header.flag, header.label, header.id, header.id2, image) == (0, 999, 1_281_166, 0, b"jpeg")
    assert unpack_image(mx.recordio.pack(mx.recordio.IRHeader(0, 7, 8, 0), b"png")) == ((7,), 8, b"png")
    with pytest.raises(RecordError, match="3 bytes are too few"):
        unpack_image(b"abc")
    many = mx.recordio.pack(mx.recordio.IRHeader(0, [1, 0], 8, 0), b"png")
    assert pack_image((1, 0), 8, b"png") == many
    assert unpack_image(many) == ((1, 0), 8, b"png")
    with pytest.raises(RecordError, match="26 bytes are too few for 2 labels"):
        unpack_image(many[:26])


@pytest.mark.parametrize(
    ("place", "damage", "problem"),
    [
        (28, b"XXXX", "no magic number"),
        (32, (40).to_bytes(4, "little"), "length of 40 bytes runs into the next record"),
        (32, (3 << 29 | 20).to_bytes(4, "little"), "part flag 3 is out of order"),
        (32, (4000).to_bytes(4, "little"), "truncated: its length is 4,000 bytes, the file has 48 more"),
    ],
)
def test_a_damaged_record_is_told_and_those_around_it_are_read(
    tmp_path: Path, place: int, damage: bytes, problem: str
) -> None:
    rec = write(tmp_path, [bytes([65 + number]) * 20 for number in range(3)])
    content = bytearray(rec.read_bytes())
    content[place : place + len(damage)] = damage
    rec.write_bytes(content)
    records = RecordFile(rec)
    assert (records.read(0), records.read(56)) == (b"A" * 20, b"C" * 20)
    with pytest.raises(RecordError, match=problem):
        records.read(28)


def test_a_file_cut_anywhere_gives_its_whole_records_and_one_problem(tmp_path: Path) -> None:
    rec = write(tmp_path, [b"A" * 20, b"B" * 20])
    for length in range(55, -1, -1):
        rec.write_bytes(rec.read_bytes()[:length])
        records, whole = RecordFile(rec), length // 28
        assert [records.read(28 * number) for number in range(whole)] == [b"A" * 20, b"B" * 20][:whole]
        with pytest.raises(RecordError, match="truncated"):
            records.read(28 * whole)


def test_a_payload_fits_the_29_bits_of_the_length_and_files_are_never_written_over(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"536,870,912 bytes are too many for a record \(below 536,870,912\)"):
        frame(bytes(1 << 29))
    write(tmp_path, [b"pixels"])
    with pytest.raises(FileExistsError):
        write_records(tmp_path / "a", [b"others"])
    assert (tmp_path / "a.rec").read_bytes() == frame(b"pixels")
