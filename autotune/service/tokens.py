"""The tokens with which people use the service: random texts, of which the store has a digest."""

import hashlib
import os
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path

from autotune.errors import UsageError

TOKEN_BYTES = 32
"""Bytes of randomness in a token; so many that a plain digest cannot be turned back."""
PREFIX = "autotune_"
"""Begins every token, so that scanners for leaked secrets can find them."""
SERVER_VARIABLE = "AUTOTUNE_SERVER"
FILE_VARIABLE = "AUTOTUNE_TOKEN_FILE"


def new_token() -> str:
    """Return a new token."""
    return PREFIX + secrets.token_urlsafe(TOKEN_BYTES)


def digest(token: str) -> str:
    """Return what the store keeps in place of a token: its SHA-256 in hexadecimal digits."""
    return hashlib.sha256(token.encode(errors="surrogateescape")).hexdigest()


def token_file(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the file that holds this user's token."""
    told = environment.get(FILE_VARIABLE)
    return Path(told).expanduser() if told else Path("~/.config/autotune/token").expanduser()


def read_token(path: Path) -> str:
    """Return the token in a file.

    Raises:
        UsageError: when there is none, or others of this machine may read it.
    """
    try:
        mode, text = path.stat().st_mode, path.read_text().strip()
    except OSError as error:
        raise UsageError(
            f"no token: {path} cannot be read ({error.strerror}); ask for one who administers the "
            f"server, and keep it there with mode 600, or name another file in {FILE_VARIABLE}"
        ) from error
    if stat.S_IMODE(mode) & 0o077:
        raise UsageError(f"others may read the token in {path}; run: chmod 600 {path}")
    if not text.isascii() or not text.isprintable() or " " in text or not text:
        raise UsageError(f"{path} holds no token: a token is one word")
    return text
