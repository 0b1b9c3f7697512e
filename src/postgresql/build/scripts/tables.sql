-- Tables of a database with something in them; all large objects count as one.
SELECT count(*) + (EXISTS (SELECT FROM pg_largeobject_metadata))::int FROM pg_class
WHERE relkind IN ('r', 'm') AND pg_relation_size(oid) > 0 AND relnamespace NOT IN
    (SELECT oid FROM pg_namespace WHERE nspname ~ '^pg_' OR nspname = 'information_schema');
