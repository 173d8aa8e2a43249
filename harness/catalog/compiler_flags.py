"""The flags that a submission may give to NVRTC and nvcc: by allow-list.

A flag can name a program to run (-ccbin), a file to write (--time), more flags (@file, -Xcompiler)
or hide warnings (-w), so what is not known here is refused. The walls hold whatever comes through.
"""

import re
from collections.abc import Iterable
from pathlib import Path

#: What is written, and the pattern of the whole flag. nvcc starts a shell: its signs are in none.
ALLOWED = {
    "-DNAME=VALUE": r"(-D|--define-macro=)[A-Za-z_]\w*(=[\w .,+*/:<>()-]*)?",
    "-UNAME": r"(-U|--undefine-macro=)[A-Za-z_]\w*",
    "-IFOLDER": r"(-I|--include-path=)(?P<folder>[\w.+-][\w./+-]*)",
    "--use_fast_math": r"--?use_fast_math",
    "-O0 to -O3": r"-O[0-3]",
    "-std=c++17": r"--?std=c\+\+(11|14|17|20|23)",
    "-lineinfo": r"-lineinfo|--generate-line-info",
    "-maxrregcount=N": r"--?maxrregcount=\d{1,3}",
    "--fmad=false": r"--?(fmad|ftz|prec-div|prec-sqrt)=(true|false)",
    "--restrict": r"--?restrict",
    "--extra-device-vectorization": r"--?extra-device-vectorization",
    "--expt-relaxed-constexpr": r"--?expt-relaxed-constexpr",
    "--extended-lambda": r"--?(expt-)?extended-lambda",
    "-default-device": r"--?default-device",
    "--diag-suppress=N": r"--?diag-suppress=\d+(,\d+)*",
    "-Xptxas=OPTION": r"(-Xptxas=?|--ptxas-options=)(-O[0-3]|-v|-dlcm=c[ags]|--warn-on-spills)",
}
_PATTERN = re.compile("|".join(f"(?:{pattern})" for pattern in ALLOWED.values()))


def refusal(flag: str) -> str:
    """Why `flag` may not be given, or an empty string."""
    if (found := _PATTERN.fullmatch(flag)) is None:
        return f"{flag!r} is not among the flags that may be given: {', '.join(ALLOWED)}"
    if ".." in Path(found["folder"] or "").parts:
        return f"{flag!r} leaves the submission's folder; name a folder inside it"
    return ""


def placed(flags: Iterable[str], folder: Path) -> list[str]:
    """`flags` with the folders of -I below `folder`, whatever the compiler's own is."""
    each = ((flag, _PATTERN.fullmatch(flag)) for flag in flags)
    return [f"-I{folder / m['folder']}" if m and m["folder"] else flag for flag, m in each]
