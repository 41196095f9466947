"""Certificates and keys for the tests of TLS and of SuperNode authentication."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from cryptography.x509.oid import NameOID

from flower.federation import Tls


def make_tls(folder: Path) -> Tls:
    """An authority of our own, and a certificate for 127.0.0.1 signed by it."""
    folder.mkdir(parents=True, exist_ok=True)
    tls = Tls(folder / "ca.pem", folder / "server.pem", folder / "server.key")
    authority_key, server_key = _new_key(), _new_key()
    authority = _name("fedvarp test authority")
    ca = _certificate(authority, authority_key, authority, authority_key)
    ca = ca.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    identifier = x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key())
    ca = ca.add_extension(identifier, critical=False)
    server = _certificate(_name("127.0.0.1"), server_key, authority, authority_key)
    addresses = [x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    server = server.add_extension(x509.SubjectAlternativeName(addresses), critical=False)
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    server = server.add_extension(issuer, critical=False)
    for file, builder in ((tls.ca, ca), (tls.certificate, server)):
        signed = builder.sign(authority_key, hashes.SHA256())
        file.write_bytes(signed.public_bytes(Encoding.PEM))
    tls.key.write_bytes(
        server_key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
    )
    return tls


def make_supernode_key(file: Path) -> Path:
    """As `ssh-keygen -t ecdsa -b 384` makes it; the public half goes to `<file>.pub`."""
    key = _new_key()
    file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    file.with_suffix(".pub").write_bytes(public)
    return file


def _new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP384R1())


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _certificate(
    subject: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    issuer: x509.Name,
    issuer_key: ec.EllipticCurvePrivateKey,
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=1))
    )
