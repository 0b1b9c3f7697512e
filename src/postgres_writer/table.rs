//! Names of tables, and the statements about them. **Pure.**
//!
//! Values are bound as parameters, always; names of tables, which cannot be, are checked and quoted.

/// The ledger: for each row its cluster, id and table, and the uid of the object it was last written for. It is in the
/// connection's default schema.
pub(super) const LEDGER: &str = "clientapp_operator_rows";
/// PostgreSQL cuts longer names off.
const NAME_BYTES: usize = 63;

/// A table, with its schema if need be.
#[derive(Clone, Debug, derive_more::Display, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Table(String);

impl Table {
    /// A name as users and cluster admins write it.
    pub(super) fn parse(text: &str) -> Option<Table> {
        let word = |word: &&str| {
            word.len() <= NAME_BYTES
                && word.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
                && word.chars().all(|char| char.is_ascii_alphanumeric() || char == '_')
        };
        let words: Vec<_> = text.split('.').collect();
        // Rows in the ledger would be forged ownership.
        let right = words.len() <= 2 && words.iter().all(word) && words.last() != Some(&LEDGER);
        right.then(|| Table(text.to_owned()))
    }

    /// A name out of the ledger. Quoting makes it safe, whatever a database admin has written there.
    pub(super) fn recorded(text: String) -> Table {
        Table(text)
    }

    /// The name as it stands in a statement.
    pub(super) fn quoted(&self) -> String {
        let words: Vec<_> = self.0.split('.').map(quoted).collect();
        words.join(".")
    }

    /// Finds the row `$1`, and whether it is as `$2`, `$3` and `$4` say.
    pub(super) fn look(&self) -> String {
        format!("SELECT (name, age, country) IS NOT DISTINCT FROM ($2, $3, $4) FROM {} WHERE id = $1", self.quoted())
    }

    /// Makes the row `$1` as `$2`, `$3` and `$4` say, unless there is one; and says whether it is so. It needs a unique
    /// `id`, without which there could be two rows.
    pub(super) fn insert(&self) -> String {
        self.upsert("NOTHING")
    }

    /// The same, and makes the one that is there be so, unless it is.
    pub(super) fn write(&self) -> String {
        self.upsert(
            "UPDATE SET name = excluded.name, age = excluded.age, country = excluded.country \
             WHERE (found.name, found.age, found.country) IS DISTINCT FROM (excluded.name, excluded.age, excluded.country)",
        )
    }

    fn upsert(&self, or: &str) -> String {
        format!(
            "INSERT INTO {} AS found (id, name, age, country) VALUES ($1, $2, $3, $4) ON CONFLICT (id) DO {or} \
             RETURNING (found.name, found.age, found.country) IS NOT DISTINCT FROM ($2, $3, $4)",
            self.quoted()
        )
    }

    pub(super) fn delete(&self) -> String {
        format!("DELETE FROM {} WHERE id = $1", self.quoted())
    }

    pub(super) fn find(&self) -> String {
        format!("SELECT 1 FROM {} WHERE id = $1", self.quoted())
    }

    /// The ids, among those in `$1`, whose row is not there, not as `$2`, `$3` and `$4` say, or not in the ledger as the
    /// cluster `$5`'s, in this table `$6`. The database compares, so that a column's own type and collation decide.
    pub(super) fn compare(&self) -> String {
        format!(
            "SELECT wanted.id FROM unnest($1, $2, $3, $4) AS wanted (id, name, age, country) \
             LEFT JOIN {LEDGER} AS entry ON entry.cluster = $5 AND entry.id = wanted.id AND entry.relation = $6 \
             LEFT JOIN {} AS found ON found.id = wanted.id WHERE entry.id IS NULL OR found.id IS NULL \
             OR (found.name, found.age, found.country) IS DISTINCT FROM (wanted.name, wanted.age, wanted.country)",
            self.quoted()
        )
    }
}

/// A name as it stands in a statement.
pub(super) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}
