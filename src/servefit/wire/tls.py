"""TLS beside the socket, not around it: bytes are decrypted in memory, so that the kernel's receive times are kept."""

import ssl

_READ_BYTES = 1 << 16


class TlsError(Exception):
    """TLS said no; the text says why."""


class Tls:
    """One connection's encryption. It holds no socket: it is given what came, and says what to send."""

    __slots__ = ("_incoming", "_object", "_outgoing", "handshaking")

    def __init__(self, context: ssl.SSLContext, host: str) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)
        self.handshaking = True

    def shake(self, data: bytes = b"") -> bytes:
        """Go on with the handshake after `data` came; what to send. `handshaking` ends when it is done. Raises TlsError."""
        self._incoming.write(data)
        try:
            self._object.do_handshake()
            self.handshaking = False
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            raise TlsError(f"TLS: {error.reason or error}") from None
        return self._outgoing.read()

    def encrypt(self, data: bytes) -> bytes:
        """What to send for `data`."""
        self._object.write(data)
        return self._outgoing.read()

    def decrypt(self, data: bytes) -> tuple[bytes, bytes]:
        """The plain bytes in `data`, and what to send in answer (a key update). Raises TlsError where there are none."""
        self._incoming.write(data)
        plain = bytearray()
        try:
            while piece := self._object.read(_READ_BYTES):
                plain += piece
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            if not plain:
                raise TlsError(f"TLS: {error.reason or error}") from None
        return bytes(plain), self._outgoing.read()
