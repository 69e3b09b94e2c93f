"""Statistics files of other systems: plain data is read, all other pickle contents are refused and not run."""

import collections
import os
import pickle
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dovetail.core.errors import StoreError
from dovetail.policies.safe_pickle import MAX_BYTES, read_pickle
from dovetail.policies.statistics_files import read_statistics


def read(data):
    return read_pickle(data, name="old.pkl")


def error_of(data):
    try:
        read(data)
    except StoreError as error:
        return str(error)
    return ""


def same(ours, theirs):
    if isinstance(theirs, np.ndarray):
        return (
            isinstance(ours, np.ndarray)
            and ours.shape == theirs.shape
            and ours.dtype == theirs.dtype.newbyteorder("=")
            and np.array_equal(ours, theirs, equal_nan=ours.dtype.kind == "f")
        )
    if isinstance(theirs, dict):
        return type(ours) is dict and list(ours) == list(theirs) and all(same(ours[k], theirs[k]) for k in theirs)
    if isinstance(theirs, list | tuple):
        return type(ours) is type(theirs) and len(ours) == len(theirs) and all(map(same, ours, theirs))
    return ours == theirs and type(ours) is type(theirs)


DTYPES = st.one_of(
    hnp.boolean_dtypes(),
    hnp.integer_dtypes(endianness="?"),
    hnp.unsigned_integer_dtypes(endianness="?"),
    hnp.floating_dtypes(endianness="?", sizes=(16, 32, 64)),
)
ARRAYS = DTYPES.flatmap(lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, min_side=0, max_side=4)))
LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=8), ARRAYS
)
TREES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=4), inner, max_size=3),
        st.dictionaries(st.text(max_size=4), inner, max_size=3).map(collections.OrderedDict),
    ),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None)
@given(tree=TREES, protocol=st.integers(0, pickle.HIGHEST_PROTOCOL))
def test_plain_data_is_read_unchanged(tree, protocol):
    assert same(read(pickle.dumps(tree, protocol)), tree)


@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=200))
def test_random_bytes_give_a_value_or_a_one_line_error(data):
    assert "\n" not in error_of(data)


@settings(max_examples=200, deadline=None)
@given(at=st.integers(0, 10_000), byte=st.integers(0, 255), protocol=st.integers(0, pickle.HIGHEST_PROTOCOL))
def test_changed_byte_gives_a_value_or_a_one_line_error(at, byte, protocol):
    data = bytearray(pickle.dumps({"state": {"mean": np.arange(3.0), "std": np.ones(3)}}, protocol))
    data[at % len(data)] = byte
    assert "\n" not in error_of(bytes(data))


def test_fortran_order_and_numpy_scalars_are_read():
    array = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    assert same(
        read(pickle.dumps({"a": array, "n": np.float32(0.5), "i": np.int64(7)})), {"a": array, "n": 0.5, "i": 7}
    )


def test_file_of_python_2_and_early_numpy_is_read():
    data = (
        b"\x80\x02}q\x01U\x04meanq\x02cnumpy.core.multiarray\n_reconstruct\nq\x03cnumpy\nndarray\nq\x04K\x00\x85q\x05"
        b"U\x01bq\x06\x87q\x07Rq\x08(K\x01K\x02\x85q\tcnumpy\ndtype\nq\nU\x02f4q\x0bK\x00K\x01\x87q\x0cRq\r"
        b"(K\x03U\x01<q\x0eNNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tq\x0fb\x89U\x08"
        + struct.pack("<2f", 1.5, -2.0)
        + b"tq\x10bs."
    )
    assert np.array_equal(read(data)["mean"], np.array([1.5, -2.0], np.float32))


# ---- malicious files


class Reduced:
    def __init__(self, *how):
        self.how = how

    def __reduce__(self):
        return self.how


@pytest.mark.parametrize(
    ("thing", "named"),
    [
        (Reduced(os.system, ("true",)), r"posix\.system"),
        (Reduced(eval, ("1",)), r"builtin(s|__)\.eval"),  # old protocols use the name of Python 2
        (Reduced(np.load, ("x.npy",)), r"numpy\.load"),
        (Reduced(getattr, (1, "real")), r"builtin(s|__)\.getattr"),
        (Reduced(np.zeros, (10,)), r"numpy\.zeros"),
        (collections.Counter("aab"), r"collections\.Counter"),
        (np.random.default_rng(0), r"numpy\.random"),
        (object(), r"copy_?reg\._reconstructor|builtin(s|__)\.object"),
    ],
)
@pytest.mark.parametrize("protocol", [0, 2, 5])
def test_other_objects_are_refused_by_name(thing, named, protocol):
    with pytest.raises(StoreError, match=named) as refusal:
        read(pickle.dumps({"mean": [thing]}, protocol))
    assert "\n" not in str(refusal.value)


def test_refused_function_is_not_run(tmp_path):
    made = tmp_path / "made"
    with pytest.raises(StoreError):
        read(pickle.dumps(Reduced(os.mkdir, (str(made),))))
    assert not made.exists()


def test_dotted_attribute_name_is_refused():
    data = b"\x80\x04\x8c\x0bcollections\x8c\x19OrderedDict.__class__.mro\x93."
    with pytest.raises(StoreError, match="OrderedDict"):
        read(data)


def _reconstructed(state, shape=(0,)):
    from numpy._core.multiarray import _reconstruct

    return Reduced(_reconstruct, (np.ndarray, shape, b"b"), state)


@pytest.mark.parametrize(
    "thing",
    [
        Reduced(np.ndarray, ((1 << 40,), "f8")),
        _reconstructed((1, (1 << 40,), np.dtype("f8"), False, b"1234")),
        _reconstructed((1, (1 << 62, 1 << 62), np.dtype("f8"), False, b"")),
        _reconstructed((1, (-1,), np.dtype("f8"), False, b"12345678")),
        _reconstructed((1, (1,), np.dtype("f8"), False, [1.0])),
        Reduced(np._core.numeric._frombuffer, (b"12345678", np.dtype("f8"), (1 << 50,), "C")),
        Reduced(np._core.multiarray.scalar, (np.dtype("f8"), b"123")),
        np.array([print], dtype=object),
        np.zeros(2, dtype=[("a", "f4"), ("b", "f4")]),
        np.array(["text"]),
        np.array([1j]),
    ],
)
def test_array_with_another_size_than_its_data_is_refused(thing):
    with pytest.raises(StoreError, match=r"array|print|bytes"):
        read(pickle.dumps({"mean": thing}))


def test_large_memo_index_allocates_no_memory():
    """The C unpickler would allocate 16 GB for these eight bytes."""
    assert read(b"\x80\x02]r\xff\xff\xff\x7f.") == []


def test_exponentially_nested_list_is_refused():
    data = (
        b"\x80\x02"
        + b"]q\x00"
        + b"".join(b"](" + b"h" + bytes([n]) + (b"h" + bytes([n])) * 9 + b"eq" + bytes([n + 1]) for n in range(12))
    )
    with pytest.raises(StoreError, match="too many or too deeply"):
        read(data + b".")


def test_list_that_contains_itself_is_refused():
    loop = []
    loop.append(loop)
    with pytest.raises(StoreError, match="too many or too deeply"):
        read(pickle.dumps(loop))


def test_pickle_cannot_modify_its_reader():
    """The opcode BUILD on a name sets attributes, which would affect later files."""
    for state in (b"}U\x05_makeNs", b"N}U\x05_makeNs\x86", b"N}U\x0c__defaults__Ns\x86"):
        with pytest.raises(StoreError, match="modify its reader"):
            read(b"\x80\x02ccollections\nOrderedDict\n" + state + b"b.")
    assert read(pickle.dumps(collections.OrderedDict(a=1))) == {"a": 1}


def test_file_above_the_maximum_size_is_refused():
    with pytest.raises(StoreError, match="more than the maximum"):
        read(b"\x80\x02" + bytes(MAX_BYTES))


# ---- statistics


MEAN, STD = [0.5, -1.0], [2.0, 0.0]


@pytest.mark.parametrize(
    "found",
    [
        {"joint_pos": {"mean": np.array(MEAN), "std": np.array(STD)}},
        {"mean": {"joint_pos": MEAN}, "std": {"joint_pos": np.array(STD, np.float32)}},
        {"norm_stats": {"joint_pos": {"mean": MEAN, "std": STD, "q01": MEAN, "q99": STD}}},
        collections.OrderedDict(joint_pos={"mean": tuple(MEAN), "std": tuple(STD)}, name="old robot"),
    ],
    ids=["by key", "by kind", "openpi", "with other things"],
)
def test_statistics_in_all_common_layouts_are_read(found):
    arrays = read_statistics(pickle.dumps(found), name="old.pkl")
    assert arrays["mean/joint_pos"].tolist() == MEAN
    assert arrays["std/joint_pos"].tolist() == pytest.approx([2.0, 1e-3])  # at least MIN_STD
    assert all(array.dtype == np.float32 for array in arrays.values())


def test_lerobot_statistics_are_read():
    text = (
        b'{"observation.state": {"mean": [1.0], "std": [2.0], "count": [9]}, "action": {"mean": [0], "std": [1]}}'
    )
    assert read_statistics(text, name="meta/stats.json")["std/state"].tolist() == [2.0]


@pytest.mark.parametrize(
    ("data", "name", "because"),
    [
        (pickle.dumps([1, 2]), "old.pkl", "no statistics"),
        (pickle.dumps({"mean": [1.0], "std": [1.0]}), "old.pkl", "no statistics"),
        (pickle.dumps({"a": {"mean": ["x"], "std": [1.0]}}), "old.pkl", "not numbers"),
        (b"{", "stats.json", "not JSON"),
        (b"[" * 100_000, "stats.json", "not JSON"),
        (b"not a pickle", "old.pkl", "not a valid pickle"),
    ],
)
def test_file_without_statistics_is_refused(data, name, because):
    with pytest.raises(StoreError, match=because) as refusal:
        read_statistics(data, name=name)
    assert "\n" not in str(refusal.value) and name in str(refusal.value)
