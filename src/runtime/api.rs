//! Answers of the API server that are no failures of the request. Pure.

/// `None`: an object of this name is there already.
pub(crate) fn unless_there<T>(answer: kube::Result<T>) -> kube::Result<Option<T>> {
    match answer {
        Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(None),
        answer => answer.map(Some),
    }
}

/// `None`: the object is gone, or the cluster does not know its kind, of which the API server says "404 page not found" and no more.
pub(crate) fn unless_gone<T>(answer: kube::Result<T>) -> kube::Result<Option<T>> {
    match answer {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
        answer => answer.map(Some),
    }
}
