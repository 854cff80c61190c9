#!/bin/sh
# Writes the secrets of deploy/compose.yaml into a file of mode 0600, deploy/.env, once: `sh deploy/make_env.sh`.
set -eu
umask 077
file="$(dirname "$0")/.env"
if [ -e "$file" ]; then
  echo "Error: $file is there already, and programs run with its secrets" >&2
  exit 1
fi
{
  for name in POSTGRES AUTHORITY WORKER ORDERS CONSOLE PUBLIC BOARD EXPORT; do
    echo "${name}_PASSWORD=$(openssl rand -hex 24)"
  done
  for name in SENTINEL_SECRET_KEYS CONFIRM_SECRETS SENTINEL_SECOND_FACTOR_SECRETS SENTINEL_EXPORT_SECRETS SHOP_WEBHOOK_SECRET; do
    echo "$name=$(openssl rand -hex 32)"
  done
} > "$file"
echo "$file"
