"""Two ends of a TLS connection in memory, with a certificate of its own: what protects messages between hospitals."""

import datetime
import ssl
from contextlib import suppress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec


def certificate(folder: Path) -> tuple[Path, Path]:
    """Write a certificate and its private key into a folder; return their paths."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "coordinator")])
    now = datetime.datetime.now(datetime.timezone.utc)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(1).not_valid_before(now - datetime.timedelta(1))
    signed = builder.not_valid_after(now + datetime.timedelta(1)).sign(key, hashes.SHA256())
    paths = folder / "certificate.pem", folder / "key.pem"
    paths[0].write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    as_text = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    paths[1].write_bytes(key.private_bytes(*as_text))
    return paths


class Channel:
    """A TLS connection whose encrypted bytes can be changed before they arrive."""

    def __init__(self, paths: tuple[Path, Path]) -> None:
        server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        server.load_cert_chain(*paths)
        client.load_verify_locations(paths[0])
        client.check_hostname = False
        self.to_server, self.to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.sender = client.wrap_bio(self.to_client, self.to_server)
        self.receiver = server.wrap_bio(self.to_server, self.to_client, server_side=True)
        for end in 4 * (self.sender, self.receiver):
            with suppress(ssl.SSLWantReadError):
                end.do_handshake()

    def send(self, data: bytes, change=lambda encrypted: encrypted) -> bytes:
        """Send data and return what is received; damaged encrypted bytes, as by `change`, raise `ssl.SSLError`."""
        self.sender.write(data)
        encrypted = change(self.to_server.read())
        self.to_server.write(encrypted)
        received = b""
        while len(received) < len(data):
            received += self.receiver.read(1 << 20)
        return received
