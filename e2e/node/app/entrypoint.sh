#!/bin/sh
# What the entrypoint of Nextcloud's image does, as far as a chart and the base values rely on it: it installs once, upgrades when the
# image is newer than what is installed, runs the hooks, and serves.
set -eu
app=/var/www/html
hooks() {
    for hook in /docker-entrypoint-hooks.d/"$1"/*.sh; do
        if [ -f "$hook" ]; then sh "$hook"; fi
    done
}
mkdir -p $app/config $app/data
cp /usr/src/app/* $app/
installed=$(php $app/occ version:installed)
if [ -z "$installed" ]; then
    hooks pre-installation
    # As there, and only here: the network may not know this pod yet.
    tries=10
    until php $app/occ maintenance:install; do
        tries=$((tries - 1))
        [ "$tries" -gt 0 ] || exit 1
        sleep 2
    done
    hooks post-installation
elif [ "$installed" != "$NEXTCLOUD_VERSION" ]; then
    hooks pre-upgrade
    php $app/occ upgrade
    hooks post-upgrade
fi
hooks before-starting
# Its workers outlive PHP's server, but not the first process.
trap 'exit 0' INT TERM
"$@" &
wait "$!"
