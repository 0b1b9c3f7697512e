-- Tables of a database with something in them; all large objects count as one. It is for sessions that look for names in pg_catalog only:
-- a function or an operator of the database's would be run by a superuser.
SELECT count(*) + (EXISTS (SELECT FROM pg_catalog.pg_largeobject_metadata))::int FROM pg_catalog.pg_class
WHERE relkind IN ('r', 'm') AND pg_catalog.pg_relation_size(oid) > 0 AND relnamespace NOT IN
    (SELECT oid FROM pg_catalog.pg_namespace WHERE nspname ~ '^pg_' OR nspname = 'information_schema');
