# SPDX-License-Identifier: MIT OR Apache-2.0
"""The product that the Python programs here compute: operands, NPU program, expected result."""
import os
import re
import struct

M, K, N = 4, 64, 64
TRAILER_WORDS = 4
TARGETS = {"CNA": 0x0201, "CORE": 0x0801, "DPU": 0x1001}
PC, MARK, ENABLE = 0x0101, 0x0041, 0x0081


def word(target, offset, value):
    return struct.pack("<Q", target << 48 | value << 16 | offset)


def program(features, weights, result):
    addresses = {"FEATURES": features, "WEIGHTS": weights, "RESULT": result}
    table = os.path.join(os.path.dirname(os.path.abspath(__file__)), "int8_4x64x64.inc")
    words = []
    for line in open(table):
        row = re.match(r"REG\((\w+), (\w+), (\w+)\)", line)
        if row:
            target, offset, value = row.groups()
            value = addresses[value] if value in addresses else int(value, 16)
            words.append(word(TARGETS[target], int(offset, 16), value))
    words += [word(PC, 0x10, 0), word(PC, 0x14, 0), word(MARK, 0, 0), word(ENABLE, 8, 0xD)]
    return b"".join(words)


def feature(m, k):
    return (31 * m + 17 * k + 3 * m * k) % 251 - 125


def weight(k, n):
    return (13 * k + 7 * n + 5 * k * n) % 241 - 120


def features():
    return struct.pack(f"{M * K}b", *(feature(m, k) for m in range(M) for k in range(K)))


def weights():
    out = bytearray(K * N)
    for k in range(K):
        for n in range(N):
            place = (n // 32 * (K // 32) + k // 32) * 1024 + n % 32 * 32 + k % 32
            out[place] = weight(k, n) & 0xFF
    return bytes(out)


def wrong_results(result):
    got = struct.unpack(f"<{M * N}i", result[: 4 * M * N])
    expected = [sum(feature(m, k) * weight(k, n) for k in range(K)) for m in range(M) for n in range(N)]
    return sum(a != b for a, b in zip(got, expected))
