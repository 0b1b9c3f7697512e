# Part of what reads the volume with dumps, at $DUMPS: which names are those of dumps. By name is by time; anything else that a user has
# put there is none. src/store/dump.rs reads the same.
is_name() { LC_ALL=C grep -Ex '[0-9]{4}(0[1-9]|1[0-2])(0[1-9]|[12][0-9]|3[01])T([01][0-9]|2[0-3])[0-5][0-9][0-5][0-9]Z-[0-9a-z]{1,63}'; }

# The newest first.
names() { ls "$DUMPS" | is_name | LC_ALL=C sort -r; }
