"""How the tasks of a run call each other: Arrow Flight, with the run's own certificate and token. Runs anywhere.

Arguments and answers are JSON. A call without the token is refused before its content is read, and a client does not
talk to a process with another certificate. Within a host, calls to servers use a Unix socket instead.
"""

import datetime
import hmac
import json
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self

import pyarrow as pa
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from pyarrow import flight

from sparkdl.parameters.unix_socket import find_socket

__all__ = ["Connection", "Credentials", "Endpoint"]

NAME = "sparkdl"
"""The certificate's subject, which is not a host, since any task of the run may have the certificate."""
CERTIFICATE_DAYS = 365  # longer than any run; the certificate is useless after its run
DIRECTLY = [("grpc.enable_http_proxy", 0)]
"""Without this, gRPC would connect to tasks of the run through the proxy in ``http_proxy`` and similar variables."""
CLOCK_DAYS = 1  # allowed difference between the clocks of two hosts


@dataclass(frozen=True)
class Credentials:
    """Certificate, key and token by which the tasks of a run authenticate; sent to them as the run's secret is."""

    certificate: bytes
    """In PEM; the only one that a :class:`Connection` trusts."""
    key: bytes = field(repr=False)
    token: str = field(repr=False)

    @classmethod
    def create(cls) -> Self:
        """Create new credentials. Runs on the driver, once per run."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, NAME)])
        now = datetime.datetime.now(datetime.UTC)
        certificate = (
            x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=CLOCK_DAYS))
            .not_valid_after(now + datetime.timedelta(days=CERTIFICATE_DAYS))
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(NAME)]), critical=False)
            .sign(key, hashes.SHA256())
        )
        return cls(
            certificate.public_bytes(serialization.Encoding.PEM),
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            ),
            secrets.token_hex(32),
        )


class Endpoint(flight.FlightServerBase):  # type: ignore[misc]
    """Answers calls with the run's token, each in a thread of its own. Listens from its creation on."""

    def __init__(
        self, host: str, credentials: Credentials, answers: Mapping[str, Callable[..., Mapping[str, Any] | None]]
    ) -> None:
        """``answers`` has, by name of the call, the function that is called with the call's keywords."""
        self._middleware = {"token": _TokenCheck(credentials.token)}
        super().__init__(
            f"grpc+tls://{host}:0",
            tls_certificates=[(credentials.certificate, credentials.key)],
            middleware=self._middleware,
        )
        self._answers = answers
        self.address = f"{host}:{self.port}"
        """Host and port."""

    def do_action(self, context: Any, action: Any) -> Iterator[Any]:
        """Answer a call; Flight's name for it."""
        answer = self._answers[action.type](**json.loads(action.body.to_pybytes()))
        yield flight.Result(pa.py_buffer(json.dumps(answer or {}).encode()))

    def __exit__(self, *_: object) -> None:
        self.shutdown()


class _TokenCheck(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    def __init__(self, token: str) -> None:
        super().__init__()
        self._expected = f"Bearer {token}"

    def start_call(self, info: Any, headers: Mapping[str, list[str]]) -> None:
        given = headers.get("authorization", [""])[0]
        if not hmac.compare_digest(str(given).encode(), self._expected.encode()):
            raise flight.FlightUnauthenticatedError("the token is not the one of this run")


class Connection:
    """A client of an :class:`Endpoint`; may be used by several threads.

    Methods raise ConnectionError when there is no answer within ``timeout`` seconds, and PermissionError, with the
    cause, when one of the two processes does not belong to the run.
    """

    def __init__(self, address: str, credentials: Credentials, *, timeout: float) -> None:
        self.address = address
        path = find_socket(address, credentials.token)
        self._client = (
            flight.FlightClient(f"grpc+unix://{path}")
            if path
            else flight.FlightClient(
                f"grpc+tls://{address}",
                tls_root_certs=credentials.certificate,
                override_hostname=NAME,
                generic_options=DIRECTLY,
            )
        )
        headers = [(b"authorization", f"Bearer {credentials.token}".encode())]
        self.options = flight.FlightCallOptions(headers=headers, timeout=timeout)

    def call(self, name: str, **keywords: Any) -> dict[str, Any]:
        """Call a function of the endpoint, with JSON values both ways. An error there raises RuntimeError here."""
        action = flight.Action(name, json.dumps(keywords).encode())
        with self.explained():
            (result,) = self._client.do_action(action, self.options)
        answer: dict[str, Any] = json.loads(result.body.to_pybytes())
        return answer

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    @property
    def client(self) -> Any:
        """Flight's own client, for streams. Use it within :meth:`explained`, with :attr:`options`."""
        return self._client

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Turn Flight's errors into those documented for this class."""
        try:
            yield
        except flight.FlightUnauthenticatedError as error:
            raise PermissionError(f"{self.address} refuses this process: {_first_line(error)}") from None
        except (flight.FlightUnavailableError, flight.FlightTimedOutError, flight.FlightCancelledError) as error:
            if "certificate" in str(error):
                raise PermissionError(
                    f"{self.address} does not have the certificate of this run: another process listens there"
                ) from None
            raise ConnectionError(f"{self.address} does not answer: {_first_line(error)}") from None
        except pa.ArrowException as error:
            raise RuntimeError(f"{self.address} failed: {error}") from None


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0].partition(". Detail:")[0]
