"""CRC32C as linear algebra: how a checksum moves over bytes, so that many lanes may work on one chunk.

A CRC without its inversions is linear over GF(2): carrying a remainder over `n` zero bytes multiplies it by a 32 x 32
matrix, a lane's remainder is carried to the chunk's end, and all lanes' remainders are added (exclusive or).
An operator is its 32 columns, each a 32-bit word: the image of one bit, least significant first.
"""

POLYNOMIAL = 0x82F63B78
"""Castagnoli's, bits reversed (RFC 3720, appendix B.4)."""
ALL_ONES = 0xFFFFFFFF

Operator = tuple[int, ...]


def over_bytes(count: int) -> Operator:
    """The operator over `count` zero bytes, by squaring."""
    result, power = tuple(1 << bit for bit in range(32)), _over_one_byte()
    while count:
        if count & 1:
            result = after(power, result)
        power, count = after(power, power), count >> 1
    return result


def applied(operator: Operator, remainder: int) -> int:
    """The operator times a remainder."""
    found = 0
    for bit in range(32):
        if remainder >> bit & 1:
            found ^= operator[bit]
    return found


def after(second: Operator, first: Operator) -> Operator:
    """The operator that is `first`, then `second`."""
    return tuple(applied(second, column) for column in first)


def lookup(operator: Operator) -> list[int]:
    """4 x 256 words: the operator of a remainder is the exclusive or of one word for each of its bytes."""
    return [applied(operator, value << (8 * place)) for place in range(4) for value in range(256)]


def inverted(linear: int, count: int) -> int:
    """The CRC32C of `count` bytes whose remainder without inversions is `linear`."""
    return linear ^ applied(over_bytes(count), ALL_ONES) ^ ALL_ONES


def _over_one_byte() -> Operator:
    columns = []
    for bit in range(32):
        value = 1 << bit
        for _ in range(8):
            value = value >> 1 ^ (POLYNOMIAL if value & 1 else 0)
        columns.append(value)
    return tuple(columns)
