# Included by scripts that read the volume with dumps, at $DUMPS: the names of dumps. Their order by name is their order by time. Files
# of a user have other names and are not dumps. src/store/dump.rs has the same rule.
is_name() { LC_ALL=C grep -Ex '[0-9]{4}(0[1-9]|1[0-2])(0[1-9]|[12][0-9]|3[01])T([01][0-9]|2[0-3])[0-5][0-9][0-5][0-9]Z-[0-9a-z]{1,63}'; }

# Newest first.
names() { ls "$DUMPS" | is_name | LC_ALL=C sort -r; }
