#!/bin/sh
# Writes the secrets of deploy/compose.yaml into a file of mode 0600, deploy/.env, once: `sh deploy/make_env.sh`. Needs openssl.
set -eu
umask 077
file="$(dirname "$0")/.env"
if [ -e "$file" ]; then
  echo "Error: $file is there already, and programs run with its secrets" >&2
  exit 1
fi
# All of it or nothing: a file with some of the secrets would be taken for the whole. Each is a command of its own, whose failure ends the script.
trap 'rm -f "$file.new"' EXIT
{
  for name in POSTGRES AUTHORITY WORKER ORDERS CONSOLE PUBLIC BOARD EXPORT; do
    secret=$(openssl rand -hex 24)
    echo "${name}_PASSWORD=$secret"
  done
  for name in SENTINEL_SECRET_KEYS CONFIRM_SECRETS SENTINEL_SECOND_FACTOR_SECRETS SENTINEL_EXPORT_SECRETS SHOP_WEBHOOK_SECRET; do
    secret=$(openssl rand -hex 32)
    echo "$name=$secret"
  done
} > "$file.new"
mv "$file.new" "$file"
echo "$file"
