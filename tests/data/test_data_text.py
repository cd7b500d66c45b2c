"""The text benchmarks, read from small files in the published form."""

from pathlib import Path

import pytest

from spikezip.data import open_data
from spikezip.data.order import hold_out
from spikezip.errors import InputError

LINES = [f"{number % 2} caf\xe9 number {number} . \n" for number in range(30)]


@pytest.mark.parametrize(("name", "file"), [("mr", "rt-polarity.all"), ("subj", "subj.all")])
def test_latin_1_lines_and_the_fixed_split(tmp_path: Path, name: str, file: str) -> None:
    (tmp_path / file).write_bytes("".join(LINES).encode("latin-1"))
    data = open_data(name, tmp_path)
    assert data.validation is data.test
    assert data.test.texts == [f"caf\xe9 number {number} ." for number in (15, 20, 25)]
    assert data.test.labels.tolist() == [1, 0, 1]
    most, held = hold_out(30, 0)
    assert held == [15, 20, 25]
    assert data.train.texts == [f"caf\xe9 number {number} ." for number in most]
    assert "SHA-256 of '0:index'" in data.note
    assert "27/3" in data.note
    assert "30 sentences (published: 1" in data.note
    assert open_data(name, tmp_path / file, seed=1).test.texts != data.test.texts


def test_texts_that_stand_on_both_sides_are_counted(tmp_path: Path) -> None:
    (tmp_path / "subj.all").write_text("0 the same\n" * 20)
    assert "2 of its texts also occur among the others" in open_data("subj", tmp_path).note


def test_a_line_ends_only_at_a_newline(tmp_path: Path) -> None:
    lines = ["0 one \x85 line\n", *LINES]
    (tmp_path / "subj.all").write_bytes("".join(lines).encode("latin-1"))
    data = open_data("subj", tmp_path)
    assert len(data.train) + len(data.test) == 31
    assert "one \x85 line" in data.train.texts + data.test.texts


def test_sst5_is_utf_8_with_its_own_splits(tmp_path: Path) -> None:
    for part, count in (("train", 6), ("dev", 2), ("test", 3)):
        (tmp_path / f"stsa.fine.{part}").write_text(
            "".join(f"{n % 5} crème {part} {n}\n" for n in range(count)), "utf-8"
        )
    data = open_data("sst5", tmp_path)
    assert data.train.labels.tolist() == [0, 1, 2, 3, 4, 0]
    assert data.validation.texts == ["crème dev 0", "crème dev 1"]
    assert len(data.test) == 3
    assert "6/2/3 sentences (published: 8,544/1,101/2,210)" in data.note


def test_sst2_header_decides(tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_bytes(b'label\tsentence\r\n1\tso "good\r\n0\tbad\r\n')
    (tmp_path / "dev.tsv").write_text("content\tlabel\nfine\t1\n")
    data = open_data("sst2", tmp_path)
    assert data.train.texts == ['so "good', "bad"]
    assert data.train.labels.tolist() == [1, 0]
    assert data.test.texts == ["fine"]
    assert data.validation is data.test
    assert data.classes == ("negative", "positive")
    with pytest.raises(InputError, match=r"train.tsv is a file; sst2 is a folder with train.tsv, dev.tsv"):
        open_data("sst2", tmp_path / "train.tsv")


@pytest.mark.parametrize(("name", "file"), [("chnsenticorp", "ChnSentiCorp_htl_all.csv"), ("waimai", "waimai_10k.csv")])
def test_chinese_reviews(tmp_path: Path, name: str, file: str) -> None:
    rows = [f'{number % 2},"很快,好吃 {number}\n""二"""\n' for number in range(19)]
    (tmp_path / file).write_text("label,review\n" + "".join(rows) + "0,\n", "utf-8-sig")  # one review is empty
    data = open_data(name, tmp_path)
    assert len(data.train) == 18
    assert data.test.texts == ['很快,好吃 15\n"二"', '很快,好吃 18\n"二"']


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "holds no sentences"),
        (b"0 good\n2 bad\n", "line 2: the label '2' is not one of 0, 1"),
        (b"0 good\nx bad\n", "line 2: the label 'x'"),
        (b"0 good\n\n1 bad\n", "line 2: expected a label, a space and a sentence"),
        (b"0 good\n1 \n", "line 2: expected a label"),
        (b"0 good\n1\tbad\n", "line 2: expected a label"),
        ("0 good\n".encode("utf-16-le"), "line 1: a zero byte"),
        (b"\xef\xbb\xbf0 good\n", "line 1: the label"),
        (b"0 good\n1 bad\n", "2 sentences, too few"),
    ],
)
def test_bad_lines(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "rt-polarity.all").write_bytes(content)
    with pytest.raises(InputError, match=words) as caught:
        open_data("mr", tmp_path / "rt-polarity.all")
    assert "rt-polarity.all" in str(caught.value)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "line 1: the header needs 'label'"),
        (b"label,review\n", "holds no sentences"),
        (b"mark,review\n1,good\n", "line 1: the header needs 'label' .*it names mark, review"),
        (b"label,review\n1,good\n1\n", "line 3: expected 2 columns, found 1"),
        (b"label,review\n1,good,very\n", "line 2: expected 2 columns, found 3"),
        (b"label,review\n1,good\n\n0,bad\n", "line 3: expected 2 columns, found 0"),
        (b"label,review\n7,good\n", "line 2: the label '7' is not one of 0, 1"),
        (b"label,review\n1,good\n0,caf\xe9 !\n", "line 3: not utf-8"),
        (b'label,review\n1,"good\n', "line 2: unexpected end of data"),
    ],
)
def test_bad_tables(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "waimai_10k.csv").write_bytes(content)
    with pytest.raises(InputError, match=words) as caught:
        open_data("waimai", tmp_path)
    assert "waimai_10k.csv" in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "stsa.fine.train").write_text("0 a\n")
    with pytest.raises(InputError, match=r"holds no stsa.fine.dev; sst5 is stsa.fine.train, stsa.fine.dev"):
        open_data("sst5", tmp_path)


def test_sst5_in_latin_1_is_an_error(tmp_path: Path) -> None:
    for part in ("train", "dev", "test"):
        (tmp_path / f"stsa.fine.{part}").write_bytes(b"0 plain\n1 cr\xe8me\n")
    with pytest.raises(InputError, match=r"stsa.fine.train, line 2: not utf-8"):
        open_data("sst5", tmp_path)
