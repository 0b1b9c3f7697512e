//! The plane's own certificate authority and its certificates.

use std::net::{IpAddr, Ipv4Addr};

use anyhow::Result;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose, SanType,
};

/// The first address of the service range, under which pods would reach the API server.
const KUBERNETES_SERVICE: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);

/// Signs the plane's certificates. Its key is never written to disk.
pub(super) struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate with its key, both PEM.
pub(super) struct Identity {
    pub(super) certificate: String,
    pub(super) key: String,
}

impl Authority {
    pub(super) fn new() -> Result<Self> {
        let mut params = CertificateParams::default();
        params.distinguished_name = name("plane", None);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        Ok(Self(CertifiedIssuer::self_signed(params, KeyPair::generate()?)?))
    }

    pub(super) fn pem(&self) -> String {
        self.0.pem()
    }

    /// The API server's serving certificate.
    pub(super) fn apiserver(&self) -> Result<Identity> {
        let service = "kubernetes.default.svc.cluster.local";
        let services = service.match_indices('.').map(|(end, _)| &service[..end]);
        let names: Vec<String> = services.chain([service, "localhost"]).map(str::to_owned).collect();
        let mut params = CertificateParams::new(names)?;
        for address in [Ipv4Addr::LOCALHOST, KUBERNETES_SERVICE] {
            params.subject_alt_names.push(SanType::IpAddress(IpAddr::V4(address)));
        }
        self.sign(params, name("kube-apiserver", None), ExtendedKeyUsagePurpose::ServerAuth)
    }

    /// A client certificate for the API server: the common name is the user, the organization a group.
    pub(super) fn client(&self, user: &str, group: Option<&str>) -> Result<Identity> {
        self.sign(CertificateParams::default(), name(user, group), ExtendedKeyUsagePurpose::ClientAuth)
    }

    fn sign(
        &self,
        mut params: CertificateParams,
        name: DistinguishedName,
        usage: ExtendedKeyUsagePurpose,
    ) -> Result<Identity> {
        let key = KeyPair::generate()?;
        params.distinguished_name = name;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![usage];
        Ok(Identity { certificate: params.signed_by(&key, &self.0)?.pem(), key: key.serialize_pem() })
    }
}

/// The key pair for service account tokens: private and public key, PEM.
pub(super) fn token_keys() -> Result<(String, String)> {
    let key = KeyPair::generate()?;
    Ok((key.serialize_pem(), key.public_key_pem()))
}

fn name(common_name: &str, organization: Option<&str>) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, common_name);
    if let Some(organization) = organization {
        name.push(DnType::OrganizationName, organization);
    }
    name
}
