"""Erasure codes over packets: they compute a group's parity, and recover lost data from the packets that arrived.

`MDS`: any `data` packets of a group suffice, whichever are lost: a Cauchy matrix over GF(256) with the polynomial x^8
+ x^4 + x^3 + x^2 + 1. `XOR`: parity packet j is the sum of the data packets j, j + parity, j + 2 x parity, ..., so
that one loss in each such class is recovered; as in SDR-RDMA (arXiv:2505.05366).

The products of a byte with the coefficients of eight parity packets are one table entry of eight bytes, so NumPy
gathers all of them at once. With groups of 32 + 8 packets of 9 kB on one busy core, this encodes 540 MB/s and recovers
170 MB/s with eight lost packets. zfec 1.6 (C) reached 90 MB/s for both; pyeclib 1.8 (C) encoded 130 MB/s and reedsolo
1.7 (Python) 1 MB/s.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Words = NDArray[np.uint64]

_POLYNOMIAL = 0x11D
_LANES = 8  # parity packets per gather
MAX_GROUP_PACKETS = 256  # data and parity packets of a group


class Code(ABC):
    """A code for groups of `data` packets of one length and `parity` parity packets."""

    def __init__(self, data: int, parity: int) -> None:
        if data < 1 or parity < 1 or data + parity > MAX_GROUP_PACKETS:
            raise ValueError(
                f"code: got {data} + {parity} packets, expected 1 + 1 to {MAX_GROUP_PACKETS} in all"
            )
        self.data, self.parity = data, parity

    @abstractmethod
    def encode(self, packets: Bytes) -> Bytes:
        """Return the parity, (parity, length), of `packets`, (data, length)."""

    @abstractmethod
    def recoverable(self, lost: Sequence[int], parity: Sequence[int]) -> bool:
        """Return whether the lost data packets, by number, can be recovered from these parity packets."""

    @abstractmethod
    def recover(self, packets: Bytes, lost: Sequence[int], parity: Mapping[int, Bytes]) -> None:
        """Write the lost packets into `packets`, (data, length), in which the others have arrived.

        They must be recoverable.
        """


class Xor(Code):
    """XOR parity by class of data packets."""

    def encode(self, packets: Bytes) -> Bytes:
        """See Code."""
        rows = [
            np.bitwise_xor.reduce(packets[number :: self.parity], axis=0) for number in range(self.parity)
        ]
        return np.stack(rows)

    def recoverable(self, lost: Sequence[int], parity: Sequence[int]) -> bool:
        """See Code."""
        classes = [number % self.parity for number in lost]
        return len(set(classes)) == len(classes) and set(classes) <= set(parity)

    def recover(self, packets: Bytes, lost: Sequence[int], parity: Mapping[int, Bytes]) -> None:
        """See Code."""
        for number in lost:
            parity_number = number % self.parity
            row = parity[parity_number].copy()
            for other in range(parity_number, self.data, self.parity):
                if other != number:
                    row ^= packets[other]
            packets[number] = row


class Mds(Code):
    """A maximum distance separable code: every parity packet can replace any lost packet."""

    def encode(self, packets: Bytes) -> Bytes:
        """See Code."""
        return _products(packets, _cauchy(self.data, self.parity))

    def recoverable(self, lost: Sequence[int], parity: Sequence[int]) -> bool:
        """See Code."""
        return len(lost) <= len(parity)

    def recover(self, packets: Bytes, lost: Sequence[int], parity: Mapping[int, Bytes]) -> None:
        """See Code."""
        if not lost:
            return
        used = sorted(parity)[: len(lost)]
        matrix = _cauchy(self.data, self.parity)[used]
        packets[list(lost)] = 0
        # the contribution of the lost packets to the parity
        missing = _products(packets, matrix) ^ np.stack([parity[number] for number in used])
        packets[list(lost)] = _products(missing, _inverse(matrix[:, list(lost)]))


CODES: dict[str, type[Code]] = {"mds": Mds, "xor": Xor}


@lru_cache(maxsize=64)
def get_code(name: str, data: int, parity: int) -> Code:
    """Return one of CODES; the same object for the same arguments."""
    return CODES[name](data, parity)


# ---- GF(256)


@lru_cache(maxsize=1)
def _multiplication() -> Bytes:
    """Return the table of all products, (256, 256)."""
    exponents = np.zeros(510, np.uint8)
    logarithms = np.zeros(256, np.int64)
    value = 1
    for power in range(255):
        exponents[power] = exponents[power + 255] = value
        logarithms[value] = power
        value = value << 1 ^ (_POLYNOMIAL if value & 0x80 else 0)
    table = np.zeros((256, 256), np.uint8)
    table[1:, 1:] = exponents[logarithms[1:, None] + logarithms[None, 1:]]
    return table


@lru_cache(maxsize=1)
def _inverses() -> Bytes:
    """Return the multiplicative inverses; the entry of 0 is meaningless."""
    found: Bytes = np.argmax(_multiplication() == 1, axis=1).astype(np.uint8)
    return found


@lru_cache(maxsize=64)
def _cauchy(data: int, parity: int) -> Bytes:
    """Return the coefficients, (parity, data). Every square submatrix is invertible."""
    rows, columns = np.arange(parity), np.arange(parity, parity + data)
    found: Bytes = _inverses()[rows[:, None] ^ columns[None, :]]
    found.setflags(write=False)
    return found


def _inverse(matrix: Bytes) -> Bytes:
    """Return the inverse of a square matrix, by Gauss-Jordan elimination."""
    times, size = _multiplication(), len(matrix)
    work = np.concatenate([matrix, np.eye(size, dtype=np.uint8)], axis=1)
    for column in range(size):
        pivot = column + int(np.argmax(work[column:, column] != 0))
        work[[column, pivot]] = work[[pivot, column]]
        work[column] = times[_inverses()[work[column, column]]][work[column]]
        for row in range(size):
            if row != column and work[row, column]:
                work[row] ^= times[work[row, column]][work[column]]
    found: Bytes = work[:, size:]
    return found


@lru_cache(maxsize=128)
def _tables(raw: bytes, rows: int) -> Words:
    """Return (columns, 256): products of each column of a matrix with every byte.

    The matrix has up to `_LANES` rows.
    """
    matrix = np.frombuffer(raw, np.uint8).reshape(rows, -1)
    lanes = np.zeros((matrix.shape[1], 256, _LANES), np.uint8)
    lanes[:, :, :rows] = _multiplication()[matrix].transpose(1, 2, 0)
    return lanes.view(np.uint64)[:, :, 0]


def _products(packets: Bytes, matrix: Bytes) -> Bytes:
    """Return the product of the matrix, (rows, packets), and packets, (packets, length)."""
    products = []
    for start in range(0, len(matrix), _LANES):
        part = np.ascontiguousarray(matrix[start : start + _LANES])
        tables = _tables(part.tobytes(), len(part))
        total = np.zeros(packets.shape[1], np.uint64)
        for table, packet in zip(tables, packets, strict=True):
            total ^= np.take(table, packet)
        products.append(total.view(np.uint8).reshape(-1, _LANES).T[: len(part)])
    return np.ascontiguousarray(np.concatenate(products))
