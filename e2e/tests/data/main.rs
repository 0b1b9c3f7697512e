//! Only data that was to be deleted is ever lost, whatever users, cluster admins and other Helm clients do at which
//! moment.

mod changes;
mod claims;
mod deletion;
mod files;
mod objects;
mod restore;
