//! Nothing is lost that was not to be deleted, whatever users, cluster admins and other Helm clients do at which moment.

mod changes;
mod deletion;
mod objects;
mod restore;
