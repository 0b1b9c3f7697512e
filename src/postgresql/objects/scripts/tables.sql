-- The number of non-empty tables of a database; all large objects count as one. For sessions that look up names in pg_catalog only:
-- otherwise a superuser would run functions or operators of the database.
SELECT count(*) + (EXISTS (SELECT FROM pg_catalog.pg_largeobject_metadata))::int FROM pg_catalog.pg_class
WHERE relkind IN ('r', 'm') AND pg_catalog.pg_relation_size(oid) > 0 AND relnamespace NOT IN
    (SELECT oid FROM pg_catalog.pg_namespace WHERE nspname ~ '^pg_' OR nspname = 'information_schema');
