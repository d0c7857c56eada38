"""A certificate for 127.0.0.1 made on the spot, so that the TLS traps need neither a shipped key nor a program.

Elliptic-curve P-256 with SHA-256, in whole numbers. For tests over loopback only: nothing here resists a side channel.
Sources: FIPS 186-5 (ECDSA), SEC 2 (the curve), RFC 5280 (the certificate), RFC 5915 (the key).
"""

import base64
import hashlib
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ssl

_P = 2**256 - 2**224 + 2**192 + 2**96 - 1
_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
_BASE = (
    0x6B17D1F2E12C4247F8BCE6E563A440F277037D812DEB33A0F4A13945D898C296,
    0x4FE342E2FE1A7F9B8EE7EB4A7C0F9E162BCE33576B315ECECBB6406837BF51F5,
)
_EC_KEY, _P256, _ECDSA_SHA256 = "06072a8648ce3d0201", "06082a8648ce3d030107", "06082a8648ce3d040302"
_COMMON_NAME, _ALT_NAME, _CONSTRAINTS = "0603550403", "0603551d11", "0603551d13"

Point = tuple[int, int] | None


def write_pem(path: Path) -> Path:
    """Write a fresh key and its certificate for 127.0.0.1 to `path`; the path."""
    secret = secrets.randbelow(_ORDER - 1) + 1
    public = _times(secret, _BASE)
    assert public is not None, "a secret below the order has a public point"
    point = b"\x04" + public[0].to_bytes(32, "big") + public[1].to_bytes(32, "big")
    key = _seq(_der(2, b"\x01"), _der(4, secret.to_bytes(32, "big")), _der(0xA0, _hex(_P256)),
               _der(0xA1, _bits(point)))  # fmt: skip
    path.write_text(_pem("EC PRIVATE KEY", key) + _pem("CERTIFICATE", _certificate(secret, point)), encoding="ascii")
    path.chmod(0o600)
    return path


def server_context(path: Path) -> "ssl.SSLContext":
    """A server's TLS context with the key and certificate in `path`."""
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    return context


def _certificate(secret: int, point: bytes) -> bytes:
    name = _seq(_der(0x31, _seq(_hex(_COMMON_NAME), _der(0x0C, b"servefit selftest"))))
    algorithm = _seq(_hex(_ECDSA_SHA256))
    alt_name = _seq(_der(0x87, bytes([127, 0, 0, 1])), _der(0x82, b"localhost"))
    extensions = _seq(
        _seq(_hex(_CONSTRAINTS), _der(1, b"\xff"), _der(4, _seq(_der(1, b"\xff")))),
        _seq(_hex(_ALT_NAME), _der(4, alt_name)),
    )
    body = _seq(
        _der(0xA0, _der(2, b"\x02")),
        _integer(secrets.randbits(120) | 1),
        algorithm,
        name,
        _seq(_der(0x17, b"200101000000Z"), _der(0x17, b"491231235959Z")),
        name,
        _seq(_seq(_hex(_EC_KEY), _hex(_P256)), _bits(point)),
        _der(0xA3, extensions),
    )
    return _seq(body, algorithm, _bits(_sign(secret, body)))


def _sign(secret: int, message: bytes) -> bytes:
    digest = int.from_bytes(hashlib.sha256(message).digest(), "big")
    while True:
        nonce = secrets.randbelow(_ORDER - 1) + 1
        spot = _times(nonce, _BASE)
        assert spot is not None, "a nonce below the order has a point"
        r = spot[0] % _ORDER
        s = pow(nonce, -1, _ORDER) * (digest + r * secret) % _ORDER
        if r and s:
            return _seq(_integer(r), _integer(s))


def _plus(a: Point, b: Point) -> Point:
    if a is None or b is None:
        return b if a is None else a
    if a[0] == b[0] and (a[1] + b[1]) % _P == 0:
        return None
    slope = (3 * a[0] * a[0] - 3) * pow(2 * a[1], -1, _P) if a == b else (b[1] - a[1]) * pow(b[0] - a[0], -1, _P)
    x = (slope * slope - a[0] - b[0]) % _P
    return x, (slope * (a[0] - x) - a[1]) % _P


def _times(factor: int, point: Point) -> Point:
    total: Point = None
    while factor:
        if factor & 1:
            total = _plus(total, point)
        point = _plus(point, point)
        factor >>= 1
    return total


def _der(tag: int, content: bytes) -> bytes:
    size = len(content)
    length = bytes([size]) if size < 128 else bytes([0x80 | (size.bit_length() + 7) // 8]) + size.to_bytes(
        (size.bit_length() + 7) // 8, "big")  # fmt: skip
    return bytes([tag]) + length + content


def _seq(*parts: bytes) -> bytes:
    return _der(0x30, b"".join(parts))


def _hex(text: str) -> bytes:
    return bytes.fromhex(text)


def _bits(content: bytes) -> bytes:
    return _der(3, b"\x00" + content)


def _integer(value: int) -> bytes:
    return _der(2, value.to_bytes(value.bit_length() // 8 + 1, "big"))


def _pem(kind: str, content: bytes) -> str:
    text = base64.encodebytes(content).decode("ascii")
    return f"-----BEGIN {kind}-----\n{text}-----END {kind}-----\n"
