"""The command `trex`: only what catches Ctrl-C while the rest is imported."""

import os
import signal


def main() -> None:
    """Run the command line. Interrupted before it has begun, it leaves at once."""
    # An exception could come up in a callback of the import system, which prints it.
    early = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    try:
        if early:
            signal.signal(signal.SIGINT, _leave)
        from trex_client.cli import main as run

        if early:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        run()
    except KeyboardInterrupt:
        _leave()


def _leave(_number: int = 0, _frame: object = None) -> None:
    try:
        os.write(2, b"trex: interrupted\n")
    finally:
        os._exit(130)


if __name__ == "__main__":
    main()
