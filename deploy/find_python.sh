#!/bin/sh
# Prints the Python that the environment is made of: the newest on PATH from 3.11 to 3.13, which requirements.txt is for; nothing where there is none.
# Where that one was compiled without optimisations (as pyenv does unless told otherwise) and the system has one of its own that can
# make environments, the system's: the same program runs a fifth faster on it. `make PYTHON=…` chooses another.

fits='import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))'

on_path=
for name in python3.13 python3.12 python3.11 python3 python; do
  if command -v "$name" >/dev/null 2>&1 && "$name" -c "$fits" 2>/dev/null; then on_path=$name; break; fi
done
if [ -z "$on_path" ] || "$on_path" "${0%/*}/is_optimised.py"; then echo "$on_path"; exit; fi
for python in /usr/bin/python3.13 /usr/bin/python3.12 /usr/bin/python3.11 /usr/bin/python3; do
  if [ -x "$python" ] && "$python" -c "$fits" 2>/dev/null && "$python" -c 'import ensurepip, venv' 2>/dev/null; then echo "$python"; exit; fi
done
echo "$on_path"
