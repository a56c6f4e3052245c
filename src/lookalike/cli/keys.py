"""`lookalike keys`: who may use a service that others can reach."""

from __future__ import annotations

from typing import Annotated

import typer

from lookalike.cli import show
from lookalike.cli.verb import Answer, verb

app = typer.Typer(help="Keys of the service: make, list and revoke them.", no_args_is_help=False)


@app.command("new")
@verb
def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What to know it by: laptop, shop page.")],
    write: Annotated[bool, typer.Option("--write", help="It may change things, not only read.")] = False,
) -> Answer:
    """Make a key; it is shown once."""
    from lookalike.service.auth import Keys

    key, secret = Keys().new(name, "write" if write else "read")
    lines = [secret, f"Copy it now; it is not shown again. It may {'read and write' if write else 'read'}."]
    return Answer(key.public() | {"key": secret}, lines, asked=True)


@app.command("ls")
@verb
def ls() -> Answer:
    """List the keys; their secrets are kept nowhere."""
    from lookalike.service.auth import Keys

    keys = Keys().list()
    body = [(k.id, k.name, k.rights, k.created[:16].replace("T", " "), k.used[:16].replace("T", " ")) for k in keys]
    lines = show.table(("id", "name", "may", "made", "used"), body) if body else ["There are no keys."]
    return Answer({"keys": [key.public() for key in keys]}, lines, asked=True)


@app.command("revoke")
@verb
def revoke(key: Annotated[str, typer.Argument(metavar="KEY", help="Its id or its name.")]) -> Answer:
    """Take a key back; a running service refuses it from now on."""
    from lookalike.service.auth import Keys

    found = Keys().revoke(key)
    return Answer({"revoked": found.id}, [f"The key `{found.name}` ({found.id}) is revoked."])
